from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.bounded_hash import SPARE, BoundedHash
from gateway.framework.fleet import Model
from tests.support.candidates import context, endpoint, names, request
from tests.support.examples import examples


def rule(**parameters) -> BoundedHash:
    return BoundedHash(BoundedHash.Parameters(**parameters), context())


def asking(number: int, *rest: int, **fields):
    return request(token_ids=array("I", [number] * 32 + list(rest)), **fields)


def fleet(count: int, **work):
    return [endpoint(slot, **work) for slot in range(count)]


def home(ring, asked, endpoints) -> str:
    (one,) = ring.filter(asked, endpoints)
    return one.name


def test_the_first_tokens_decide() -> None:
    ring, idle = rule(), fleet(8)
    for number in range(50):
        assert home(ring, asking(number, 1), idle) == home(ring, asking(number, 2, 3), idle)
    assert len({home(ring, asking(7, rest), idle) for rest in range(50)}) == 1
    assert len({home(rule(prefix_tokens=33), asking(7, rest), idle) for rest in range(50)}) > 4


def test_models_adapters_and_sessions_have_keys_of_their_own() -> None:
    idle = fleet(8)
    assert len({home(rule(), asking(1, adapter=f"a{i}"), idle) for i in range(50)}) > 4
    assert len({home(rule(), asking(1, model=Model(f"m{i}")), idle) for i in range(50)}) > 4
    assert len({home(rule(), asking(1, session=f"s{i}"), idle) for i in range(50)}) == 1
    by_session = rule(by="session")
    assert len({home(by_session, asking(1, session=f"s{i}"), idle) for i in range(50)}) > 4
    assert len({home(by_session, asking(i, session="s"), idle) for i in range(50)}) == 1
    assert len({home(by_session, asking(i), idle) for i in range(50)}) > 4


def test_shares_are_even_and_a_new_endpoint_moves_only_its_own() -> None:
    ring = rule()
    before = [home(ring, asking(number), fleet(8)) for number in range(2000)]
    after = [home(ring, asking(number), fleet(9)) for number in range(2000)]
    assert all(now in (then, "e8") for then, now in zip(before, after, strict=True))
    assert all(140 < share < 320 for share in Counter(after).values())
    # Who is out for a while has its keys again when it is back.
    assert [home(ring, asking(number), fleet(8)) for number in range(2000)] == before


@examples(50)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=8), st.integers(0, 1000), st.floats(1, 3))
def test_nobody_gets_more_than_its_bound(loads, number, factor) -> None:
    busy = [endpoint(slot, requests=requests) for slot, requests in enumerate(loads)]
    (chosen,) = rule(load_factor=factor, replicas=16).filter(asking(number), busy)
    assert chosen.load.requests <= factor * (sum(loads) + 1) / len(loads)


def test_a_busy_home_sends_the_request_on_always_to_the_same() -> None:
    ring, idle = rule(), fleet(8)
    first = home(ring, asking(3), idle)
    next(one for one in idle if one.name == first).load.requests = 5
    second = home(ring, asking(3), idle)
    assert second != first
    assert home(ring, asking(3), [one for one in idle if one.name != first]) == second


def test_names_that_are_gone_do_not_pile_up() -> None:
    ring = rule(replicas=4)
    for start in range(0, 1000, 2):
        ring.filter(asking(1), [endpoint(start), endpoint(start + 1)])
    assert len(ring._rings["m"]._names) <= 2 * 2 + SPARE + 2


def test_one_candidate_or_none_is_kept() -> None:
    assert names(rule().filter(asking(1), fleet(1, requests=100))) == ["e0"]
    assert rule().filter(asking(1), []) == []


@pytest.mark.parametrize("bad", [{"prefix_tokens": 0}, {"load_factor": 0.9}, {"replicas": 0}, {"replicas": 5000}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        BoundedHash.Parameters(**bad)
