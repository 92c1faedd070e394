from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.observer import Charge, Hit, Observer
from gateway.observability.metrics import Metrics
from gateway.observability.observers import METHODS
from tests.observability.conftest import ANSWERED

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def text(metrics: Metrics) -> bytes:
    return b"".join(metrics.families.text())


def read(metrics: Metrics) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text(metrics).decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return read(metrics).get((name, frozenset(labels.items())))


def labelled(metrics: Metrics, label: str, wanted: str) -> set[str]:
    return {name for name, labels in read(metrics) if (label, wanted) in labels}


@pytest.fixture
def metrics(clock) -> Metrics:
    return Metrics(clock, "1.2.3")


def test_everything_that_can_be_observed_is_counted() -> None:
    assert len(METHODS) > 15
    for name in METHODS:
        assert vars(Metrics).get(name) is not None, f"Metrics ignores {name}"
        assert vars(Metrics)[name] is not vars(Observer)[name]


def test_an_answered_request(metrics, settled) -> None:
    metrics.settled(settled())
    assert value(metrics, "kvgate_requests_total", model="m", outcome="ok") == 1
    assert value(metrics, "kvgate_time_to_first_token_seconds_sum", model="m") == pytest.approx(0.1)
    assert value(metrics, "kvgate_time_per_output_token_seconds_sum", model="m") == pytest.approx(0.02)
    assert value(metrics, "kvgate_request_duration_seconds_sum", model="m") == pytest.approx(2.1)
    assert value(metrics, "kvgate_queue_wait_seconds_count", model="m") == 1
    assert value(metrics, "kvgate_overhead_seconds_sum", model="m") == pytest.approx(0.0008)
    assert value(metrics, "kvgate_prompt_tokens_total", model="m") == 120
    assert value(metrics, "kvgate_output_tokens_total", model="m") == 101


def test_a_refused_request_is_counted_but_does_not_flatter_the_times(metrics, settled) -> None:
    metrics.settled(settled(outcome="saturated", status=429, endpoint=None, ttft=None, output_tokens=None))
    assert value(metrics, "kvgate_requests_total", model="m", outcome="saturated") == 1
    for name in ("request_duration", "time_to_first_token", "queue_wait", "overhead"):
        assert not value(metrics, f"kvgate_{name}_seconds_count", model="m")


def test_one_output_token_has_no_time_between_tokens(metrics, settled) -> None:
    metrics.settled(settled(output_tokens=1))
    metrics.settled(settled(output_tokens=None))
    metrics.settled(settled(outcome="cancelled"))
    assert value(metrics, "kvgate_time_per_output_token_seconds_count", model="m") is None
    assert value(metrics, "kvgate_time_to_first_token_seconds_count", model="m") == 3


def test_decision_attempts_and_disconnects(metrics) -> None:
    metrics.placed("m", "single", 0.0003)
    metrics.attempted("m", "a", "decode", "refused")
    metrics.attempted("m", "a", "decode", "refused")
    metrics.disconnected("m", "queued")
    assert value(metrics, "kvgate_decision_seconds_bucket", model="m", le="0.0004") == 1
    assert value(metrics, "kvgate_decision_seconds_bucket", model="m", le="0.0002") == 0
    assert value(metrics, "kvgate_attempts_total", model="m", endpoint="a", leg="decode", result="refused") == 2
    assert value(metrics, "kvgate_client_disconnects_total", model="m", phase="queued") == 1


def test_tokens_and_hits(metrics, settled) -> None:
    metrics.tokens_estimated("m", "no-tokenizer")
    metrics.settled(settled(counted=10, reported_prompt_tokens=10, hits=[Hit("a", 100, 48, 64)]))
    metrics.settled(settled(counted=10, reported_prompt_tokens=11, hits=[Hit("a", 60, 32, 16)]))
    metrics.settled(settled(counted=None, hits=[Hit("b", 10, 5, None), Hit("b", None, 5, 6)]))
    metrics.cache_lookups("a", "own", 200, 90)
    metrics.cache_lookups("a", "external", 20, 10)
    assert value(metrics, "kvgate_prompts_estimated_total", model="m", reason="no-tokenizer") == 1
    assert value(metrics, "kvgate_token_counts_compared_total", model="m") == 2
    assert value(metrics, "kvgate_token_count_mismatches_total", model="m") == 1
    assert value(metrics, "kvgate_expected_hit_tokens_total", model="m", endpoint="a") == 80
    assert value(metrics, "kvgate_reported_hit_tokens_total", model="m", endpoint="a") == 80
    assert value(metrics, "kvgate_reported_prompt_tokens_total", model="m", endpoint="a") == 160
    assert value(metrics, "kvgate_reported_prompt_tokens_total", model="m", endpoint="b") == 10
    assert value(metrics, "kvgate_reported_hit_tokens_total", model="m", endpoint="b") == 5
    assert value(metrics, "kvgate_expected_hit_tokens_total", model="m", endpoint="b") == 6
    assert value(metrics, "kvgate_engine_cache_query_tokens_total", endpoint="a", cache="own") == 200
    assert value(metrics, "kvgate_engine_cache_hit_tokens_total", endpoint="a", cache="external") == 10
    # The two errors cancel each other in the totals, and not here.
    assert value(metrics, "kvgate_hit_error_tokens_total", model="m", endpoint="a") == 32


def test_no_mismatch_is_a_zero_and_not_an_absence(metrics, settled) -> None:
    metrics.settled(settled(counted=10, reported_prompt_tokens=10))
    assert value(metrics, "kvgate_token_count_mismatches_total", model="m") == 0


def test_plugins(metrics) -> None:
    metrics.plugin_failed("scorer", "cost", ValueError("x"))
    metrics.score_refused("cost")
    assert value(metrics, "kvgate_plugin_failures_total", kind="scorer", plugin="cost") == 1
    assert value(metrics, "kvgate_scores_refused_total", plugin="cost") == 1


def test_kv_cache(metrics) -> None:
    metrics.kv_events("a", "stored", 40)
    metrics.kv_events("a", "unknown-type", 1)
    metrics.kv_gap("a", "replayed")
    metrics.kv_stream("a", "connecting")
    metrics.kv_stream("a", "live")
    metrics.kv_blocks("m", 1234)
    assert value(metrics, "kvgate_kv_events_total", endpoint="a", kind="stored") == 40
    assert value(metrics, "kvgate_kv_events_total", endpoint="a", kind="unknown-type") == 1
    assert value(metrics, "kvgate_kv_gaps_total", endpoint="a", result="replayed") == 1
    assert value(metrics, "kvgate_kv_stream_state", endpoint="a", state="live") == 1
    assert value(metrics, "kvgate_kv_stream_state", endpoint="a", state="connecting") is None
    assert value(metrics, "kvgate_kv_index_blocks", model="m") == 1234


def test_plans_legs_and_hand_overs(metrics) -> None:
    for reason in ("split", "split", "short"):
        metrics.placed("m", reason, 0.001)
    metrics.attempted("m", "p", "prefill", "ok")
    metrics.prefilled("m", 0.3)
    metrics.handed_over("m", 0.05)
    metrics.fell_back("m", "late")
    assert value(metrics, "kvgate_plans_total", model="m", reason="split") == 2
    assert value(metrics, "kvgate_plans_total", model="m", reason="short") == 1
    assert value(metrics, "kvgate_attempts_total", model="m", endpoint="p", leg="prefill", result="ok") == 1
    assert value(metrics, "kvgate_prefill_leg_seconds_sum", model="m") == pytest.approx(0.3)
    assert value(metrics, "kvgate_handover_seconds_bucket", model="m", le="0.04") == 0
    assert value(metrics, "kvgate_handover_seconds_bucket", model="m", le="0.07") == 1
    assert value(metrics, "kvgate_handover_fallbacks_total", model="m", cause="late") == 1


def test_what_engines_say_of_their_transfers(metrics) -> None:
    metrics.kv_transfers("p", 7.0, {})
    metrics.kv_transfers("d", 0.0, {"waiting_to_start": 3, "in_progress": 1})
    metrics.kv_transfers("d", 0.0, {"waiting_to_start": 0, "in_progress": 2})
    assert value(metrics, "kvgate_engine_kv_expired_requests", endpoint="p") == 7
    assert value(metrics, "kvgate_engine_kv_expired_requests", endpoint="d") == 0
    assert value(metrics, "kvgate_engine_kv_fetching_requests", endpoint="d", stage="waiting_to_start") == 0
    assert value(metrics, "kvgate_engine_kv_fetching_requests", endpoint="d", stage="in_progress") == 2
    assert labelled(metrics, "endpoint", "p") == {"kvgate_engine_kv_expired_requests"}
    metrics.kv_transfers("d", 0.0, {})
    assert labelled(metrics, "endpoint", "d") == {"kvgate_engine_kv_expired_requests"}


def test_an_engine_that_is_dropped_takes_its_series_along(metrics) -> None:
    metrics.engine_state("e", False, "refused")
    metrics.scraped("e", True, 1000.0)
    metrics.scraped("e", False, 1001.0)
    metrics.scraped("other", True, 1000.0)
    assert "kvgate_engine_up" in labelled(metrics, "engine", "e")
    metrics.engine_dropped("e")
    assert labelled(metrics, "engine", "e") == set()
    assert labelled(metrics, "engine", "other") == {"kvgate_scrapes_total", "kvgate_scrape_age_seconds"}


def say_all(metrics: Metrics, endpoint: str) -> None:
    """What a request and a stream still say about an endpoint."""
    metrics.attempted("m", endpoint, "decode", "ok")
    metrics.settled(replace(ANSWERED, hits=[Hit(endpoint, 1, 1, 1)]))
    metrics.kv_events(endpoint, "stored", 1)
    metrics.kv_gap(endpoint, "lost")


def test_an_endpoint_that_is_dropped_takes_its_series_along(metrics) -> None:
    for endpoint in ("a", "b"):
        metrics.kv_stream(endpoint, "live")
        metrics.kv_transfers(endpoint, 1.0, {"in_progress": 1})
        say_all(metrics, endpoint)
    metrics.endpoint_dropped("a")
    assert labelled(metrics, "endpoint", "a") == set()
    assert len(labelled(metrics, "endpoint", "b")) == 10


def test_a_dropped_endpoints_last_requests_do_not_bring_it_back(metrics) -> None:
    metrics.draining("a", False)
    metrics.endpoint_dropped("a")
    say_all(metrics, "a")
    metrics.kv_stream("a", "off")
    assert labelled(metrics, "endpoint", "a") == set()


def test_what_is_out_of_use_is_shown_as_long_as_it_is_there(metrics) -> None:
    metrics.draining("a", True)
    assert value(metrics, "kvgate_endpoint_draining", endpoint="a") == 1
    metrics.draining("a", False)
    assert value(metrics, "kvgate_endpoint_draining", endpoint="a") == 0
    metrics.endpoint_dropped("a")
    assert value(metrics, "kvgate_endpoint_draining", endpoint="a") is None


def test_a_model_that_is_dropped_takes_its_series_along(metrics, settled) -> None:
    metrics.settled(settled())
    metrics.placed("m", "single", 0.001)
    metrics.queued("m", 3)
    metrics.kv_blocks("m", 7)
    metrics.parity("m", True)
    metrics.endpoint_parity("m", "a", True)
    metrics.placed("other", "single", 0.001)
    metrics.model_dropped("m")
    assert [name for name, labels in read(metrics) if dict(labels).get("model") == "m"] == []
    assert value(metrics, "kvgate_plans_total", model="other", reason="single") == 1


def test_an_endpoint_that_comes_back_is_shown_again(metrics) -> None:
    metrics.endpoint_dropped("a")
    metrics.draining("a", False)
    metrics.kv_stream("a", "connecting")
    metrics.kv_events("a", "stored", 3)
    assert value(metrics, "kvgate_kv_events_total", endpoint="a", kind="stored") == 3
    metrics.endpoint_dropped("a")
    metrics.draining("a", True)
    metrics.kv_transfers("a", 2.0, {})
    metrics.attempted("m", "a", "prefill", "ok")
    shown = {"kvgate_endpoint_draining", "kvgate_engine_kv_expired_requests", "kvgate_attempts_total"}
    assert labelled(metrics, "endpoint", "a") == shown


def test_what_ended_before_an_endpoint_was_dropped_goes_with_it(metrics, settled) -> None:
    """Though it was not counted yet, and the endpoint comes back."""
    ended = settled(hits=(Hit("a", prompt=120, cached=96, expected=96),))
    metrics.settled(ended)
    metrics.endpoint_dropped("a")
    metrics.draining("a", False)
    assert value(metrics, "kvgate_requests_total", model="m", outcome="ok") == 1
    assert value(metrics, "kvgate_reported_prompt_tokens_total", model="m", endpoint="a") is None
    metrics.settled(ended)
    assert value(metrics, "kvgate_reported_prompt_tokens_total", model="m", endpoint="a") == 120


def test_what_waits_to_be_counted_is_bounded(metrics, settled) -> None:
    most = 0
    for _ in range(1000):
        metrics.placed("m", "single", 0.001)
        metrics.settled(settled())
        most = max(most, len(metrics._ended) + len(metrics._decided))
    assert 10 < most < 200
    assert value(metrics, "kvgate_requests_total", model="m", outcome="ok") == 1000
    assert value(metrics, "kvgate_plans_total", model="m", reason="single") == 1000
    assert value(metrics, "kvgate_decision_seconds_count", model="m") == 1000


def test_what_a_tenant_is_charged_is_counted_by_kind(metrics, settled) -> None:
    metrics.settled(settled(charge=Charge("red", 5, 3, 2)))
    metrics.settled(settled(charge=Charge("red", 1, 0, 0), outcome="cancelled"))
    metrics.settled(settled())
    for kind, count in (("input", 6), ("cached", 3), ("output", 2)):
        assert value(metrics, "kvgate_tenant_tokens_total", tenant="red", kind=kind) == count
    metrics.limit_refused("red", "tokens")
    assert value(metrics, "kvgate_limit_refused_total", tenant="red", limit="tokens") == 1
    metrics.read_from(held=lambda: 0, in_flight=dict, budgets=lambda: {("red",): 1.25})
    assert value(metrics, "kvgate_budget_spent_ratio", tenant="red") == 1.25


def test_keys_and_what_keeps_them_are_read(metrics) -> None:
    metrics.read_tenants_from(keys=lambda: 7, header_tenants=lambda: 3, source=lambda: {"valkey": False})
    assert value(metrics, "kvgate_tenant_keys") == 7
    assert value(metrics, "kvgate_header_tenants") == 3
    assert value(metrics, "kvgate_keys_source_up", source="valkey") == 0


def test_names_of_dropped_endpoints_are_not_kept_for_ever(metrics) -> None:
    for number in range(5000):
        metrics.endpoint_dropped(f"e{number}")
    assert len(metrics.families.dropped) < 2000


def test_what_is_read_is_shown_as_it_is_then(metrics) -> None:
    running = {"a": 0}
    metrics.read_from(held=lambda: 5, in_flight=lambda: running, budgets=dict)
    assert value(metrics, "kvgate_held_bytes") == 5
    assert value(metrics, "kvgate_in_flight_requests", endpoint="a") == 0
    running.update(a=2, b=1)
    assert value(metrics, "kvgate_in_flight_requests", endpoint="a") == 2
    assert value(metrics, "kvgate_in_flight_requests", endpoint="b") == 1
    del running["a"]
    assert value(metrics, "kvgate_in_flight_requests", endpoint="a") is None


def test_names_have_our_prefix_or_the_ecosystems(metrics, settled) -> None:
    metrics.settled(settled())
    names = {name for name, _ in read(metrics)}
    assert all(name.startswith(("kvgate_", "process_", "python_")) for name in names)
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= names
    assert not any(name.endswith("_created") for name in names)
    assert value(metrics, "kvgate_build_info", version="1.2.3") == 1


def test_two_gateways_in_a_process_do_not_share_series(clock, settled) -> None:
    one, other = Metrics(clock), Metrics(clock)
    one.settled(settled())
    assert value(other, "kvgate_requests_total", model="m", outcome="ok") is None


async def test_slices_render_the_same(metrics, settled) -> None:
    metrics.settled(settled())
    metrics.read_from(held=lambda: 0, in_flight=lambda: {"a": 1}, budgets=lambda: {("red",): 0.5})
    metrics.read_tenants_from(keys=lambda: 1, header_tenants=lambda: 0, source=lambda: {"file": True})
    whole = text(metrics)
    sliced, content_type = await metrics.render()
    assert content_type.startswith("text/plain")

    def ours(body: bytes) -> list[bytes]:
        return [line for line in body.splitlines() if b"kvgate_" in line]

    assert ours(sliced) == ours(whole)


def test_rendering_in_a_thread_while_counting_goes_on(metrics, settled) -> None:
    failed: list[BaseException] = []
    stop = threading.Event()

    def render() -> None:
        try:
            while not stop.is_set():
                text(metrics)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    for number in range(600):
        endpoint = f"e{number % 50}"
        metrics.settled(settled(model=f"m{number % 7}"))
        metrics.draining(endpoint, False)
        say_all(metrics, endpoint)
        metrics.kv_stream(endpoint, "live")
        if number % 3 == 0:
            metrics.endpoint_dropped(endpoint)
    stop.set()
    thread.join()
    assert failed == []
