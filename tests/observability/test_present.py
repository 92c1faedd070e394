from __future__ import annotations

from gateway.observability.present import Present


def shown(present: Present, name: str) -> dict[tuple[str, ...], float]:
    for family in present.collect():
        if family.name == name:
            return {tuple(sample.labels.values()): sample.value for sample in family.samples}
    raise AssertionError(f"no family {name}")


def test_a_scrapes_age_grows_while_nobody_scrapes(clock) -> None:
    present = Present(clock, "1")
    assert shown(present, "kvgate_scrape_age_seconds") == {}
    present.scraped["e"] = clock.now
    assert shown(present, "kvgate_scrape_age_seconds") == {("e",): 0.0}
    clock.now += 2.5
    assert shown(present, "kvgate_scrape_age_seconds") == {("e",): 2.5}


def test_an_engine_is_up_or_down_for_one_reason(clock) -> None:
    present = Present(clock, "1")
    present.engines["e"] = (False, "refused")
    assert shown(present, "kvgate_engine_up") == {("e",): 0}
    assert shown(present, "kvgate_engine_down_reason") == {("e", "refused"): 1}
    present.engines["e"] = (False, "timeout")
    assert shown(present, "kvgate_engine_down_reason") == {("e", "timeout"): 1}
    present.engines["e"] = (True, "")
    assert shown(present, "kvgate_engine_up") == {("e",): 1}
    assert shown(present, "kvgate_engine_down_reason") == {}


def test_queues_and_indexes_by_model(clock) -> None:
    present = Present(clock, "1")
    present.queued["m"] = 3
    present.blocks["m"] = 10
    assert shown(present, "kvgate_queued_requests") == {("m",): 3}
    assert shown(present, "kvgate_kv_index_blocks") == {("m",): 10}
