"""A line looks as the logger would have written it, and holds no more of what is secret."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.clock import ManualClock
from gateway.observability.line_composer import LineComposer
from gateway.observability.logs import Logs, configure
from gateway.observability.redaction import Redaction, _holds_secret
from gateway.observability.request_log import RequestLog, request_fields
from gateway.observability.settings import LogSettings
from tests.observability.conftest import ANSWERED, Lines
from tests.support.examples import examples

CLOCK = ManualClock(1000.0, epoch=1_800_000_000.0)
SECRET = "conf1gured"
WORDS = st.sampled_from(
    ["", "m", "a b", "a=b", 'say "x"', "it's", "line\nbreak", "\x1b[31m", "é\u2028", SECRET, "x\ty"]
)
TEXTS = WORDS | st.text(max_size=12) | st.sampled_from(["Bearer abc", "sk-proj-1234567890", "http://u:p@host/"])
SECONDS = st.floats(0, 1e5) | st.sampled_from([0.0, 1e-7, 0.0000005, 0.1234567, 1e-5])
REQUESTS = st.builds(
    replace,
    st.just(ANSWERED),
    request_id=TEXTS,
    model=TEXTS,
    endpoint=st.none() | WORDS,
    outcome=st.sampled_from(["ok", "broken", "upstream_error", "cancelled"]),
    status=st.sampled_from([200, 404, 499, 502]),
    stream=st.booleans(),
    duration=SECONDS,
    ttft=st.none() | SECONDS,
    output_tokens=st.none() | st.integers(0, 10**6),
    reported_prompt_tokens=st.sampled_from([None, 120, 121]),
    plan=st.sampled_from(["", "split"]),
    slo=st.sampled_from([None, "met"]),
    by_ids=st.booleans(),
    fallback=st.none() | WORDS,
    error=st.none() | TEXTS,
)


def open_logs(stream: io.BytesIO, format_: str, level: str = "info") -> Logs:
    settings = LogSettings(format=format_, level=level)  # type: ignore[arg-type]
    return configure(settings, stream=stream, clock=CLOCK, secrets=[SECRET])


def compose(logs: Logs, gather: Callable[[Any], dict[str, Any]], of: Any) -> None:
    assert logs.composer is not None
    logs.writer.write(partial(logs.composer.line, logging.INFO, "request", CLOCK.wall(), gather, of))


@examples(150)
@given(request=REQUESTS, format_=st.sampled_from(["json", "text"]))
@example(request=replace(ANSWERED, request_id="\ud800"), format_="json")
@example(request=replace(ANSWERED, request_id="\ud800"), format_="text")
def test_a_line_is_what_the_logger_makes_of_it(request, format_) -> None:
    lines = Lines()
    logs = open_logs(lines, format_)
    for _ in range(2):  # what is remembered is shown as what is new
        compose(logs, request_fields, request)
    logs.logger.info("request", **request_fields(request))
    logs.close()
    once, again, expected = lines.getvalue().splitlines()
    if format_ == "json":
        assert orjson.loads(once) == orjson.loads(expected)
        assert list(orjson.loads(once)) == list(orjson.loads(expected))
    else:
        assert once == expected
    assert once == again
    assert SECRET.encode() not in once


# What a credential looks like, whole and in pieces that make one with what stands beside it.
CREDENTIALS = st.sampled_from(
    [
        *(
            "Bearer abc",
            "bearer\tabc",
            "Bearer ***",
            "bearer",
            "authorization: Basic dXNlcg==",
            "http://u:p@host/",
            "://u:",
        ),
        *("x-api-key=abc", "api_key: 'abc'", "('x-api-key', 'abc')", "api_key=", "sk-proj-1234567890", "hf_AbCdEfGhIj"),
        *("p@host", SECRET, SECRET[:5], SECRET[5:]),
    ]
)
# What a line, a terminal or a renderer may take for its own; text of any code point, lone surrogates too.
ODD = st.sampled_from(["\n", "\r", "\x1b[31m", "\x00", "\x7f", "\x85", "\u2028", "\u202e", "\ud800", "\\", "\\n", "="])
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
HOSTILE = st.lists(CREDENTIALS | ODD | ANY_TEXT, max_size=4).map("".join)
VALUES = HOSTILE | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans()


@examples(300)
@given(
    fields=st.dictionaries(st.sampled_from(["request_id", "error", "model", "route", "ttft"]), VALUES, min_size=1),
    format_=st.sampled_from(["json", "text"]),
)
def test_hostile_values_are_masked_and_escaped_as_by_the_logger(fields, format_) -> None:
    lines = Lines()
    logs = open_logs(lines, format_)
    for _ in range(2):
        compose(logs, dict, fields)
    logs.logger.info("request", **fields)
    logs.close()
    once, again, expected, end = lines.getvalue().split(b"\n")
    assert once == again == expected
    assert end == b""
    assert SECRET.encode() not in once
    assert not any(byte in once for byte in b"\r\x1b\x00")


def test_seconds_are_rounded_to_the_microsecond() -> None:
    for value, shown in ((0.1234567, 0.123457), (2.1, 2.1), (0.0, 0.0), (3599.9999996, 3600.0), (0.00001, 0.00001)):
        assert request_fields(replace(ANSWERED, duration=value))["duration"] == shown == round(value, 6)


def test_no_name_of_a_field_is_one_that_would_be_masked() -> None:
    everything = replace(
        ANSWERED, outcome="x", plan="x", prefill_endpoint="x", prefill_time=1.0, slo="met", by_ids=True, fallback="x",
        error="x", reported_prompt_tokens=1,
    )  # fmt: skip
    assert not any(_holds_secret((name,)) for name in request_fields(everything))


@pytest.mark.parametrize("format_", ["json", "text"])
def test_a_word_that_becomes_a_secret_is_not_remembered(format_, clock) -> None:
    lines = Lines()
    logs = open_logs(lines, format_)
    log = RequestLog(logs, clock)
    log.settled(replace(ANSWERED, model="wasneutral", request_id="wasneutral"))
    deadline = time.monotonic() + 10
    while "wasneutral" not in lines.text and time.monotonic() < deadline:  # the writer's thread composes it
        time.sleep(0.005)
    logs.change("info", ["wasneutral"])
    log.settled(replace(ANSWERED, model="wasneutral", request_id="wasneutral"))
    logs.close()
    before, after = lines.text.splitlines()
    assert before.count("wasneutral") == 2
    assert "wasneutral" not in after
    assert after.count("***") == 2


@pytest.mark.parametrize(("level", "seen"), [("debug", 2), ("info", 2), ("warning", 1), ("error", 0)])
def test_a_line_below_the_level_is_not_even_gathered(level, seen, clock, settled, monkeypatch) -> None:
    gathered = []
    monkeypatch.setattr(
        "gateway.observability.request_log.request_fields",
        lambda request: gathered.append(request) or request_fields(request),
    )
    lines = Lines()
    logs = open_logs(lines, "json", level)
    log = RequestLog(logs, clock)
    log.settled(settled())
    log.settled(settled(status=502, outcome="upstream_error"))
    logs.close()
    assert len(lines.text.splitlines()) == len(gathered) == seen


def test_what_is_remembered_is_bounded() -> None:
    lines = LineComposer(str, Redaction(), text=True, free=("request_id",))
    for number in range(10_000):
        fields = {"request_id": f"r{number}", "model": f"m{number}"}
        lines.line(logging.INFO, "request", 0.0, dict, fields)
    assert 0 < len(lines._shown) <= 4096
    assert not any(shown.startswith("r") for shown in lines._shown)


class Terminal(Lines):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_requests_are_coloured_as_all_lines(clock) -> None:
    lines = Terminal()
    logs = open_logs(lines, "text")
    RequestLog(logs, clock).settled(ANSWERED)
    logs.logger.info("request", **request_fields(ANSWERED))
    logs.close()
    line, expected = lines.text.splitlines()
    assert line == expected
    assert "\x1b[" in line
