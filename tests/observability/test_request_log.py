from __future__ import annotations

import orjson
import pytest

from gateway.observability.logs import configure
from gateway.observability.request_log import RequestLog, request_fields
from gateway.observability.settings import LogSettings


@pytest.fixture
def seen(lines, clock):
    """``seen(lambda log: ...)``: the JSON lines that come of it."""

    def run(use, requests: bool = True) -> list[dict]:
        logs = configure(LogSettings(format="json"), stream=lines, clock=clock)
        try:
            use(RequestLog(logs, clock, requests=requests))
        finally:
            logs.close()
        return [orjson.loads(line) for line in lines.text.splitlines()]

    return run


def test_one_line_for_a_request(seen, answered) -> None:
    [line] = seen(lambda log: log.settled(answered))
    assert line == {
        "time": "2027-01-15T08:16:40.000Z",
        "level": "info",
        "event": "request",
        "request_id": "req-1",
        "model": "m",
        "route": "/v1/chat/completions",
        "status": 200,
        "outcome": "ok",
        "stream": True,
        "endpoint": "a",
        "attempts": 1,
        "prompt_tokens": 120,
        "exact": True,
        "expected_hit": 96,
        "match": "events",
        "cached_tokens": 96,
        "output_tokens": 101,
        "ttft": 0.1,
        "duration": 2.1,
        "queue_wait": 0.0,
        "overhead": 0.0008,
    }


def test_whom_a_request_was_for_is_in_its_line_in_both_forms(seen, settled) -> None:
    [line] = seen(lambda log: log.settled(settled(tenant="red", key="red-ci")))
    assert (line["tenant"], line["key_id"]) == ("red", "red-ci")
    assert not {"tenant", "key_id"} & set(request_fields(settled()))


def test_a_failed_request_says_where_it_ended(seen, settled) -> None:
    failed = settled(
        outcome="upstream_timeout",
        status=504,
        phase="before-commit",
        error="engine a sent no head within 300 s",
        ttft=None,
        output_tokens=None,
        cached_tokens=None,
        reported_prompt_tokens=None,
    )
    [line] = seen(lambda log: log.settled(failed))
    assert line["level"] == "warning"
    assert line["phase"] == "before-commit"
    assert line["error"] == "engine a sent no head within 300 s"
    assert not {"ttft", "output_tokens", "cached_tokens"} & set(line)


def test_an_answer_that_broke_off_is_a_warning_though_its_head_said_200(seen, settled) -> None:
    [line] = seen(lambda log: log.settled(settled(outcome="broken", error="died: connection reset")))
    assert (line["level"], line["status"]) == ("warning", 200)


def test_a_clients_mistake_is_no_warning(seen, settled) -> None:
    [line] = seen(lambda log: log.settled(settled(status=404, outcome="not_found", endpoint=None)))
    assert line["level"] == "info"
    assert "endpoint" not in line


def test_an_engines_other_token_count_is_in_the_line(settled) -> None:
    assert request_fields(settled(reported_prompt_tokens=121))["reported_prompt_tokens"] == 121
    assert "reported_prompt_tokens" not in request_fields(settled())


def test_request_lines_can_be_off(seen, answered) -> None:
    assert seen(lambda log: log.settled(answered), requests=False) == []


def test_a_token_mismatch_is_logged_once_per_model(seen, settled) -> None:
    def use(log: RequestLog) -> None:
        log.settled(settled(counted=10, reported_prompt_tokens=10))
        log.settled(settled(counted=None, reported_prompt_tokens=11))
        for _ in range(3):
            log.settled(settled(counted=10, reported_prompt_tokens=12))
            log.settled(settled(model="other", counted=7, reported_prompt_tokens=6))

    lines = seen(use, requests=False)
    assert [(line["model"], line["ours"], line["reported"]) for line in lines] == [("m", 10, 12), ("other", 7, 6)]
    assert "tokenizer" in lines[0]["event"]


def test_estimates_are_logged_once_per_reason(seen) -> None:
    def use(log: RequestLog) -> None:
        for _ in range(3):
            log.tokens_estimated("m", "no-tokenizer")
            log.tokens_estimated("m", "image")
            log.score_refused("cost")

    lines = seen(use)
    assert [line.get("reason") for line in lines] == ["no-tokenizer", "image", None]


def test_a_plugin_that_always_fails_is_a_line_a_minute(seen, clock) -> None:
    def use(log: RequestLog) -> None:
        for _ in range(150):
            log.plugin_failed("scorer", "cost", ZeroDivisionError("no tokens"))
            clock.now += 1.0
        log.plugin_failed("filter", "labels", ValueError("x"))

    lines = seen(use)
    assert [(line["plugin"], line["not_logged"]) for line in lines] == [
        ("cost", 0),
        ("cost", 59),
        ("cost", 59),
        ("labels", 0),
    ]
    assert "ZeroDivisionError: no tokens" in lines[0]["exception"]


def test_a_gap_is_logged(seen) -> None:
    [line] = seen(lambda log: log.kv_gap("a", "lost"))
    assert (line["level"], line["endpoint"], line["result"]) == ("warning", "a", "lost")


def test_gaps_without_end_are_a_line_a_minute(seen, clock) -> None:
    def use(log: RequestLog) -> None:
        for _ in range(1000):
            log.kv_gap("a", "lost")
        log.kv_gap("b", "lost")
        clock.now += 60.0
        log.kv_gap("a", "lost")

    assert [(line["endpoint"], line["not_logged"]) for line in seen(use)] == [("a", 0), ("b", 0), ("a", 999)]


def test_a_stream_that_flaps_is_some_lines_a_minute(seen, clock) -> None:
    def use(log: RequestLog) -> None:
        for _ in range(500):
            log.kv_stream("a", "partial")
            log.kv_stream("a", "live")
        clock.now += 60.0
        log.kv_stream("a", "off")

    lines = seen(use)
    assert len(lines) == 11
    assert (lines[-1]["state"], lines[-1]["not_logged"]) == ("off", 990)


def test_a_streams_states_are_logged_and_a_partial_one_is_a_warning(seen) -> None:
    lines = seen(lambda log: [log.kv_stream("a", state) for state in ("connecting", "partial", "live")])
    assert [(line["endpoint"], line["state"], line["level"]) for line in lines] == [
        ("a", "connecting", "info"),
        ("a", "partial", "warning"),
        ("a", "live", "info"),
    ]


def test_a_split_requests_line_names_both_endpoints(seen, settled) -> None:
    [line] = seen(lambda log: log.settled(settled(plan="split", prefill_endpoint="p", prefill_time=0.1234567)))
    assert (line["plan"], line["prefill_endpoint"], line["prefill_time"]) == ("split", "p", 0.123457)
    assert "fallback" not in line


def test_a_line_says_why_a_prefill_was_not_used(settled) -> None:
    fields = request_fields(settled(plan="split", prefill_endpoint="p", fallback="late"))
    assert fields["fallback"] == "late"
    assert "prefill_time" not in fields
    assert "plan" not in request_fields(settled())


def test_expired_leases_are_told_at_once_and_then_once_a_minute(seen, clock) -> None:
    def use(log: RequestLog) -> None:
        log.kv_transfers("p", 40.0, {})  # from before we came
        for expired in (40.0, 42.0, 43.0, 43.0):
            log.kv_transfers("p", expired, {})
            log.kv_transfers("other", 0.0, {"in_progress": 1})
            clock.now += 1.0
        clock.now += 60.0
        log.kv_transfers("p", 48.0, {})
        clock.now += 120.0
        log.kv_transfers("p", 48.0, {})

    lines = seen(use)
    assert [(line["endpoint"], line["expired"]) for line in lines] == [("p", 2), ("p", 6)]
    assert lines[0]["level"] == "warning"
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in lines[0]["event"]


def test_each_endpoints_leases_are_told(seen) -> None:
    def use(log: RequestLog) -> None:
        for expired in (0.0, 1.0):
            log.kv_transfers("p", expired, {})
            log.kv_transfers("q", expired, {})

    assert [line["endpoint"] for line in seen(use)] == ["p", "q"]


def test_an_engines_restart_is_no_expired_lease(seen) -> None:
    def use(log: RequestLog) -> None:
        for expired in (9.0, 2.0, 2.0, 3.0):
            log.kv_transfers("p", expired, {})

    assert [line["expired"] for line in seen(use)] == [1]


def test_an_endpoint_that_was_dropped_begins_anew(seen) -> None:
    def use(log: RequestLog) -> None:
        log.kv_transfers("p", 0.0, {})
        log.endpoint_dropped("p")
        log.kv_transfers("p", 5.0, {})
        log.kv_transfers("p", 6.0, {})
        assert list(log._expired) == ["p"]
        log.endpoint_dropped("p")
        assert not log._expired

    assert [line["expired"] for line in seen(use)] == [1]
