"""The table of what a failed hand-over means: its rows, and ARCHITECTURE.md prints it. What follows from them is tested
with engines, in test_handover.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import UpstreamError, UpstreamTimeout
from gateway.proxy.serving.handover_failures import (
    HANDOVER_RULES,
    HandoverCause,
    HandoverFailed,
    HandoverRule,
    of_decode,
    of_prefill,
)
from gateway.proxy.upstream.legs import Cause, LegFailed
from tests.support.candidates import endpoint

PAGE = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()

LATE = {
    *("prefill-connect-timeout", "prefill-head-timeout", "prefill-idle-timeout", "prefill-total-timeout"),
    "decode-stuck",
}


def test_every_cause_has_its_row() -> None:
    assert set(HANDOVER_RULES) == {*HandoverCause, *map(of_prefill, Cause)}


@pytest.mark.parametrize(("cause", "rule"), HANDOVER_RULES.items(), ids=str)
def test_a_strict_plans_client_gets_what_the_row_says(cause: str, rule: HandoverRule) -> None:
    error = HandoverFailed(cause, "engine-7 is gone").error()
    assert type(error) is rule.error is (UpstreamTimeout if cause in LATE else UpstreamError)
    assert f"({cause})" in error.message
    assert "engine-7" not in error.message


@pytest.mark.parametrize("cause", Cause)
def test_each_failure_of_a_prefill_leg_has_a_cause(cause: Cause) -> None:
    assert of_prefill(cause) == f"prefill-{cause}"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("cause", Cause)
def test_only_some_failures_of_a_decode_leg_are_the_hand_overs(cause: Cause, announced: bool, stream: bool) -> None:
    failure = LegFailed(cause, endpoint(), "detail")
    failure.announced = announced
    late = stream and cause in (Cause.HEAD_TIMEOUT, Cause.IDLE_TIMEOUT)
    expected = HandoverCause.DECODE_STUCK if late else HandoverCause.DECODE_ERROR if announced else None
    assert of_decode(failure, stream=stream) is expected


def test_the_architecture_prints_the_table() -> None:
    of_legs = {of_prefill(cause) for cause in Cause} - {HandoverCause.PREFILL_STATUS}
    rows = [
        f"| `{cause}` | {rule.happened} | `{rule.error.__name__}` {rule.error.status} |"
        for cause, rule in HANDOVER_RULES.items()
        if cause not in of_legs
    ]
    assert [row for row in rows if row not in PAGE] == []
