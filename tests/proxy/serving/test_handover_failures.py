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
from gateway.proxy.upstream.legs import RULES, Cause, LegFailed
from tests.support.candidates import endpoint

PAGE = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()


def test_every_cause_has_its_row() -> None:
    assert set(HANDOVER_RULES) == {*HandoverCause, *map(of_prefill, Cause)}


@pytest.mark.parametrize(("cause", "rule"), HANDOVER_RULES.items(), ids=str)
def test_a_strict_plans_client_gets_what_the_row_says(cause: str, rule: HandoverRule) -> None:
    error = HandoverFailed(cause, "engine-7 is gone").error()
    assert type(error) is rule.error
    assert f"({cause})" in error.message
    assert "engine-7" not in error.message


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.STATUS])
def test_a_prefill_legs_failure_is_late_where_the_legs_row_says_so(cause: Cause) -> None:
    late = RULES[cause].said.error is UpstreamTimeout
    assert HANDOVER_RULES[f"prefill-{cause}"].error is (UpstreamTimeout if late else UpstreamError)


def test_one_word_is_both_a_failure_of_the_leg_and_a_cause_of_its_own() -> None:
    """Its row is the cause's. Any other such word would lose the leg's row unseen."""
    assert {of_prefill(cause) for cause in Cause} & set(HandoverCause) == {HandoverCause.PREFILL_STATUS}


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
