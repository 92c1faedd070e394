from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.lmetric import LMetric
from tests.support.candidates import context, endpoint, request


def scores(asked, *endpoints, **parameters):
    return LMetric(LMetric.Parameters(**parameters), context()).score(asked, endpoints)


def test_it_is_tokens_to_compute_times_requests() -> None:
    busy = endpoint(0, requests=3, foreign_requests=1.0, prefill_tokens=400)
    # (400 queued + 600 new) x (3 + 1 + 1) = 5000
    assert scores(request(1000, held={0: 400}), busy, half=5000) == [0.5]
    # without the queued: 600 x 5
    assert scores(request(1000, held={0: 400}), busy, half=3000, queued=False) == [0.5]


def test_an_idle_endpoint_still_costs_the_prompt() -> None:
    cold, warm = scores(request(1000, held={1: 900}), endpoint(0), endpoint(1))
    assert warm > cold


def test_another_candidate_changes_no_score() -> None:
    asked, one = request(1000), endpoint(0, requests=2)
    assert scores(asked, one)[0] == scores(asked, one, endpoint(1), endpoint(2, requests=100))[0]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**8), st.integers(0, 10**4))
def test_scores_are_in_range_and_more_work_scores_lower(prompt, held, queued, running) -> None:
    asked = request(prompt, held={0: held, 1: held})
    less, more = scores(
        asked,
        endpoint(0, requests=running, prefill_tokens=queued),
        endpoint(1, requests=running + 1, prefill_tokens=queued),
    )
    assert 0 < more < less < 1


def test_half_has_a_range() -> None:
    with pytest.raises(ValueError, match="half"):
        LMetric.Parameters(half=0.0)
