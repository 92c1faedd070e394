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


FLEET = [endpoint(slot, requests=requests) for slot, requests in enumerate((0, 2, 6, 10))]


@pytest.mark.parametrize(
    ("parameters", "scores"),
    [
        ({"relative": "range"}, [1.0, 0.8, 0.4, 0.0]),
        ({"relative": "most"}, [1.0, 0.8, 0.4, 0.0]),
        ({"relative": "most", "idle": 2, "busy": 0.5}, [1.0, 1.0, 0.2, 0.0]),
    ],
)
def test_relative_is_what_llm_d_s_scorers_say(parameters, scores) -> None:
    relative = ActiveRequests(ActiveRequests.Parameters(**parameters), context())
    assert relative.score(request(), FLEET) == pytest.approx(scores)


def test_relative_to_the_range_begins_at_the_least_and_to_the_most_at_none() -> None:
    busy = [endpoint(0, requests=5), endpoint(1, requests=10)]
    for relative, scores in (("range", [1.0, 0.0]), ("most", [0.5, 0.0])):
        assert ActiveRequests(ActiveRequests.Parameters(relative=relative), context()).score(request(), busy) == scores
        assert ActiveRequests(ActiveRequests.Parameters(relative=relative), context()).score(request(), []) == []
    alike = [endpoint(0, requests=5), endpoint(1, requests=5)]
    assert ActiveRequests(ActiveRequests.Parameters(relative="range"), context()).score(request(), alike) == [1.0, 1.0]


@pytest.mark.parametrize("bad", [{"idle": -1}, {"busy": 1.5}])
def test_idle_and_busy_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        ActiveRequests.Parameters(**bad)
