from __future__ import annotations

from collections import Counter

import pytest

from gateway.framework import Endpoint, NoParameters
from pickers.power_of_two import PowerOfTwo
from tests.support.candidates import context, endpoint, request


def scored(*scores: float) -> tuple[list[Endpoint], tuple[float, ...]]:
    return [endpoint(slot) for slot in range(len(scores))], scores


def test_the_better_of_two_is_first_and_the_worst_never() -> None:
    picker, candidates = PowerOfTwo(NoParameters(), context()), scored(0.1, 0.2, 0.3)
    firsts: Counter[int] = Counter()
    for _ in range(9000):
        first, second = picker.pick(request(), *candidates)
        assert first.slot > second.slot
        firsts[first.slot] += 1
    # Of the three pairs two hold the best.
    assert firsts[2] / 9000 == pytest.approx(2 / 3, abs=0.03)
    assert firsts[0] == 0


def test_equals_are_as_likely() -> None:
    picker, candidates = PowerOfTwo(NoParameters(), context()), scored(0.5, 0.5, 0.5, 0.5)
    firsts = Counter(picker.pick(request(), *candidates)[0].slot for _ in range(8000))
    assert all(firsts[slot] / 8000 == pytest.approx(0.25, abs=0.03) for slot in range(4))


def test_one_candidate_is_picked() -> None:
    candidates = scored(0.0)
    assert PowerOfTwo(NoParameters(), context()).pick(request(), *candidates) == candidates[0]
