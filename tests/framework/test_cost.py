from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import NO_MATCH, Scalars
from gateway.framework.match import Match

ROUND = Scalars(
    prefill_token=1e-3,
    prefill_quadratic=1e-6,
    step=0.02,
    step_request=1e-3,
    kv_token=1e-6,
    overhead=0.005,
    cpu_fetch=1e-5,
    storage_fetch=1e-4,
    step_tokens=1000,
)
IDLE = (0.0, 0, 0.0, 0.0, 0.0, 0.0)


def test_an_idle_engine_computes_the_prompt() -> None:
    first = ROUND.first_token(IDLE, NO_MATCH, 1000)
    assert first.prefill == pytest.approx(1000 * (1e-3 + 1e-6 * 500))
    assert (first.overhead, first.queued, first.fetch, first.batch) == (0.005, 0, 0, 0)
    assert first.seconds == pytest.approx(sum(first))


def test_what_is_held_is_not_computed_and_fetched_from_where_it_is() -> None:
    first = ROUND.first_token(IDLE, Match(gpu=400, cpu=300, storage=100, expected_hit=800), 1000)
    assert first.prefill == pytest.approx(200 * (1e-3 + 1e-6 * 900))
    assert first.fetch == pytest.approx(300e-5 + 100e-4)
    assert ROUND.fetch_seconds(Match(cpu=10)) == 0, "less than a block is of no use"
    whole = ROUND.first_token(IDLE, Match(gpu=1008, expected_hit=1000), 1000)
    assert whole.prefill == pytest.approx(1e-3 + 1e-6 * 999.5), "the last token is always computed"


def test_the_queue_goes_first_less_what_is_done_of_it_and_each_step_carries_the_batch() -> None:
    sums = (4.5, 500, 500 * 300.0, 0.2, 30_000.0, 0.0)
    first = ROUND.first_token(sums, NO_MATCH, 100)
    assert first.queued == pytest.approx(0.5 + 0.15 - 0.2)
    assert first.batch == pytest.approx((1 + 600 / 1000) * (0.0045 + 0.03))
    assert ROUND.step_seconds(4.5, 30_000) == pytest.approx(0.02 + 0.0045 + 0.03)
    assert ROUND.first_token((1, 500, 0.0, 9.0, 0, 0.0), NO_MATCH, 100).queued == 0


def test_two_parts_of_a_prompt_cost_what_the_whole_does() -> None:
    parts = ROUND.prefill_seconds(4000) + ROUND.prefill_seconds(6000, 4000)
    assert parts == pytest.approx(ROUND.prefill_seconds(10_000))
    assert ROUND.prefill_seconds(0) == ROUND.prefill_seconds(-5, -5) == 0


WORK = st.tuples(st.floats(0, 1000), st.integers(0, 10**6), st.floats(0, 1e9), st.floats(0, 100), st.floats(0, 1e8))


@given(WORK, st.integers(0, 4), st.integers(1, 10**6), st.integers(0, 10**6))
def test_it_is_never_negative_and_more_work_never_makes_it_shorter(work, which, prompt, held) -> None:
    match = Match(gpu=held, expected_hit=min(held, prompt - 1))
    work = (*work, 0.0)
    first = ROUND.first_token(work, match, prompt)
    assert min(first) >= 0
    if which != 3:  # what is done is none
        more = (*work[:which], work[which] + 100, *work[which + 1 :])
        assert ROUND.first_token(more, match, prompt).seconds >= first.seconds
