from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import NoParameters
from pickers.max_score import MaxScore
from tests.support.candidates import context, endpoint, names, request


def scored(*scores):
    return [endpoint(slot) for slot in range(len(scores))], scores


def test_best_first() -> None:
    assert names(MaxScore(NoParameters(), context()).pick(request(), *scored(0.2, 0.9, 0.5))) == ["e1", "e2", "e0"]


def test_chance_decides_among_the_best_only() -> None:
    picker = MaxScore(NoParameters(), context(seed=7))
    first = Counter(names(picker.pick(request(), *scored(1.0, 0.9, 1.0, 1.0)))[0] for _ in range(300))
    assert set(first) == {"e0", "e2", "e3"}
    assert min(first.values()) > 60


def test_the_same_seed_makes_the_same_choices() -> None:
    one, two = (MaxScore(NoParameters(), context(seed=3)) for _ in range(2))
    ties = [1.0] * 10
    assert [names(one.pick(request(), *scored(*ties))) for _ in range(20)] == [
        names(two.pick(request(), *scored(*ties))) for _ in range(20)
    ]


@given(st.lists(st.floats(0, 4), min_size=1, max_size=20))
def test_every_candidate_once_in_order_of_score(scores) -> None:
    picked = MaxScore(NoParameters(), context()).pick(request(), *scored(*scores))
    assert sorted(one.slot for one in picked) == list(range(len(scores)))
    ranked = [scores[one.slot] for one in picked]
    assert ranked == sorted(scores, reverse=True)
