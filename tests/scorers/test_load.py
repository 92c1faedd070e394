from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.load import LoadScorer
from tests.support.candidates import context, endpoint, request


def score(**work) -> float:
    scorer = LoadScorer(LoadScorer.Parameters(requests=8.0, seconds=2.0), context())
    return scorer.score(request(), [endpoint(**work)])[0]


def test_idle_is_one() -> None:
    assert score() == 1.0


def test_requests_alone_or_prefill_alone_or_half_of_each_is_a_half() -> None:
    assert score(requests=8) == 0.5
    assert score(requests=5, foreign_requests=3.0) == 0.5
    assert score(prefill_tokens=2000) == 0.5  # 2 s
    assert score(requests=4, prefill_tokens=1000) == 0.5


@given(st.integers(0, 10**5), st.integers(0, 10**9))
def test_the_less_loaded_of_two_overloaded_endpoints_scores_higher(requests, tokens) -> None:
    assert (
        0 < score(requests=requests + 1, prefill_tokens=tokens) < score(requests=requests, prefill_tokens=tokens) <= 1
    )


@pytest.mark.parametrize("bad", [{"requests": 0.0}, {"seconds": 0.0}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        LoadScorer.Parameters(**bad)
