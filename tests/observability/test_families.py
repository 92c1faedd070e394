from __future__ import annotations

from gateway.observability.families import Families


def shown(families: Families, name: str) -> dict[str, float]:
    """Values by labels, as they are written."""
    lines = b"".join(families.text()).decode().splitlines()
    assert f"# TYPE {name} gauge" in lines
    samples = (line.removeprefix(f"{name}{{").rpartition("} ") for line in lines if line.startswith(f"{name}{{"))
    return {labels: float(value) for labels, _, value in samples}


def test_a_scrapes_age_grows_while_nobody_scrapes(clock) -> None:
    families = Families(clock, "1")
    assert shown(families, "kvgate_scrape_age_seconds") == {}
    families.scraped["e"] = clock.now
    assert shown(families, "kvgate_scrape_age_seconds") == {'engine="e"': 0.0}
    clock.now += 2.5
    assert shown(families, "kvgate_scrape_age_seconds") == {'engine="e"': 2.5}


def test_an_engine_is_up_or_down_for_one_reason(clock) -> None:
    families = Families(clock, "1")
    families.engines["e"] = (False, "refused")
    assert shown(families, "kvgate_engine_up") == {'engine="e"': 0}
    assert shown(families, "kvgate_engine_down_reason") == {'engine="e",reason="refused"': 1}
    families.engines["e"] = (False, "timeout")
    assert shown(families, "kvgate_engine_down_reason") == {'engine="e",reason="timeout"': 1}
    families.engines["e"] = (True, "")
    assert shown(families, "kvgate_engine_up") == {'engine="e"': 1}
    assert shown(families, "kvgate_engine_down_reason") == {}


def test_queues_and_indexes_by_model(clock) -> None:
    families = Families(clock, "1")
    families.queued["m",] = 3
    families.blocks["m",] = 10
    assert shown(families, "kvgate_queued_requests") == {'model="m"': 3}
    assert shown(families, "kvgate_kv_index_blocks") == {'model="m"': 10}
