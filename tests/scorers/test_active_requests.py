from __future__ import annotations

import pytest

from scorers.active_requests import ActiveRequests
from tests.support.candidates import context, endpoint, request


def test_idle_is_one_and_half_is_a_half_with_others_requests_counted() -> None:
    fleet = [
        endpoint(0),
        endpoint(1, requests=8),
        endpoint(2, requests=3, foreign_requests=5.0),
        endpoint(3, requests=24),
    ]
    scorer = ActiveRequests(ActiveRequests.Parameters(half=8.0), context())
    assert scorer.score(request(), fleet) == [1.0, 0.5, 0.5, 0.25]


def test_a_difference_of_one_weighs_the_same_whatever_the_other_candidates_are() -> None:
    scorer = ActiveRequests(ActiveRequests.Parameters(), context())
    pair = [endpoint(0, requests=1), endpoint(1, requests=2)]
    crowd = [*pair, endpoint(2, requests=500)]
    assert scorer.score(request(), pair) == scorer.score(request(), crowd)[:2]


def test_half_has_a_range() -> None:
    with pytest.raises(ValueError, match="half"):
        ActiveRequests.Parameters(half=0.0)
