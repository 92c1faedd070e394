from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters import cache_aware
from filters.cache_aware import CacheAware
from gateway.framework import Plan
from tests.support.candidates import context, endpoint, names, request


def rule(**parameters) -> CacheAware:
    return CacheAware(CacheAware.Parameters(**parameters), context())


def test_unbalanced_it_takes_the_least_busy_whatever_is_held() -> None:
    fleet = [endpoint(0, requests=65), endpoint(1), endpoint(2)]
    asked = request(1000, held={0: 1000})
    assert names(rule().filter(asked, fleet)) == ["e1", "e2"]
    fleet[0].load.requests = 64
    assert names(rule().filter(asked, fleet)) == ["e0"]
    # Both bounds must be passed: 300 is not more than 1.5 x 200.
    fleet = [endpoint(0, requests=300), endpoint(1, requests=200)]
    assert names(rule().filter(asked, fleet)) == ["e0"]
    assert names(rule(balance_rel=1.4).filter(asked, fleet)) == ["e1"]


def test_balanced_it_takes_the_best_match_above_the_threshold() -> None:
    fleet = [endpoint(slot) for slot in range(3)]
    assert names(rule().filter(request(1000, held={0: 301, 1: 400, 2: 400}), fleet)) == ["e1", "e2"]
    assert names(rule().filter(request(1000, held={0: 300}), fleet)) == ["e0", "e1", "e2"]


def test_what_nobody_holds_goes_to_the_smallest_tree() -> None:
    fleet, trees = [endpoint(slot) for slot in range(3)], rule()
    trees.on_placed(request(1000), Plan.of(fleet[0]))
    assert names(trees.filter(request(500), fleet)) == ["e1", "e2"]
    trees.on_placed(request(900, held={1: 500}), Plan.of(fleet[1]))
    trees.on_placed(request(300), Plan.of(fleet[0], prefill=fleet[2]))
    assert names(trees.filter(request(500), fleet)) == ["e2"]
    trees.on_placed(request(200), Plan.of(fleet[2]))
    assert names(trees.filter(request(500), fleet)) == ["e1"]


def test_or_to_the_least_busy() -> None:
    fleet = [endpoint(0, requests=1), endpoint(1, requests=2)]
    assert names(rule(cold="least-load").filter(request(100), fleet)) == ["e0"]


def test_no_candidates_are_none() -> None:
    assert rule().filter(request(), []) == []


def test_a_tree_grows_to_its_bound_and_names_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(cache_aware, "REMEMBERED", 8)
    trees = rule(tree_tokens=1500)
    for slot in range(20):
        trees.on_placed(request(1000), Plan.of(endpoint(slot)))
        trees.on_placed(request(1000), Plan.of(endpoint(slot)))
    assert len(trees._trees) <= 8
    assert set(trees._trees.values()) == {1500}


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 1000)), min_size=1, max_size=6),
    st.integers(0, 1000),
    st.sampled_from(["smallest-tree", "least-load"]),
)
def test_it_always_leaves_one(states, prompt, cold) -> None:
    fleet = [endpoint(slot, requests=running) for slot, (running, _) in enumerate(states)]
    asked = request(prompt, held={slot: held for slot, (_, held) in enumerate(states)})
    kept = rule(cold=cold).filter(asked, fleet)
    assert kept
    assert [one for one in fleet if one in kept] == kept


@pytest.mark.parametrize("bad", [{"threshold": 2}, {"balance_abs": -1}, {"balance_rel": 0.5}, {"tree_tokens": 0}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        CacheAware.Parameters(**bad)
