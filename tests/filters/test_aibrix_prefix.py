from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.aibrix_prefix import AibrixPrefix
from tests.support.candidates import context, endpoint, names, request


def kept(asked, running, **parameters):
    fleet = [endpoint(slot, requests=requests) for slot, requests in enumerate(running)]
    return names(AibrixPrefix(AibrixPrefix.Parameters(**parameters), context()).filter(asked, fleet))


def test_imbalance_goes_to_the_least_busy() -> None:
    assert kept(request(1000, held={0: 1000}), [9, 0, 0]) == ["e1", "e2"]
    # 8 is not above 8; mean 8/3, sigma 3.8: 8 is too busy for its match all the same.
    assert kept(request(1000, held={0: 1000}), [8, 0, 0]) == ["e1", "e2"]
    assert kept(request(1000, held={0: 1000}), [8, 0, 0], sigmas=2) == ["e0"]
    assert kept(request(1000, held={0: 1000}), [9, 0, 0], imbalance=16, sigmas=2) == ["e0"]


def test_the_best_match_that_is_not_too_busy() -> None:
    # mean 3, sigma 2.2: the first has 6.
    asked = request(1000, held={0: 900, 1: 500, 2: 500})
    assert kept(asked, [6, 3, 3, 0]) == ["e1", "e2"]
    assert kept(asked, [6, 3, 2, 1]) == ["e2"]
    assert kept(asked, [5, 5, 5, 5]) == ["e0"]


def test_without_a_match_the_least_busy() -> None:
    assert kept(request(1000), [2, 1, 1]) == ["e1", "e2"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 100)), max_size=6), st.floats(0, 3))
def test_it_leaves_one_where_there_is_one(states, sigmas) -> None:
    asked = request(100, held={slot: held for slot, (_, held) in enumerate(states)})
    left = kept(asked, [running for running, _ in states], sigmas=sigmas)
    assert bool(left) == bool(states)
    assert left == sorted(left)


@pytest.mark.parametrize("bad", [{"imbalance": -1}, {"sigmas": -0.5}, {"sigmas": float("nan")}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        AibrixPrefix.Parameters(**bad)
