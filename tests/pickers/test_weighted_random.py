from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import Endpoint, NoParameters
from pickers.weighted_random import WeightedRandom
from tests.support.candidates import context, endpoint, names, request


def scored(*scores: float) -> tuple[list[Endpoint], tuple[float, ...]]:
    return [endpoint(slot) for slot in range(len(scores))], scores


def test_each_comes_first_by_its_share() -> None:
    picker, candidates = WeightedRandom(NoParameters(), context()), scored(0.1, 0.3, 0.6, 0.0)
    firsts = Counter(picker.pick(request(), *candidates)[0].slot for _ in range(20_000))
    assert firsts[3] == 0
    for slot, share in enumerate((0.1, 0.3, 0.6)):
        assert firsts[slot] / 20_000 == pytest.approx(share, abs=0.015)


def test_where_all_score_0_each_is_as_likely() -> None:
    picker, candidates = WeightedRandom(NoParameters(), context()), scored(0.0, 0.0)
    firsts = Counter(picker.pick(request(), *candidates)[0].slot for _ in range(10_000))
    assert firsts[0] / 10_000 == pytest.approx(0.5, abs=0.03)


@given(st.lists(st.one_of(st.just(0.0), st.floats(5e-324, 10)), min_size=1, max_size=10))
def test_all_are_returned_once_and_those_without_a_score_last(scores) -> None:
    picked = WeightedRandom(NoParameters(), context()).pick(request(), *scored(*scores))
    assert sorted(names(picked)) == sorted(f"e{slot}" for slot in range(len(scores)))
    zeros = [scores[one.slot] == 0 for one in picked]
    assert zeros == sorted(zeros) or min(filter(None, scores)) < 1e-300  # log(U) / the least float is endless too
