"""How much of each engine's KV memory is known to keep nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.prompt import Prompt
from gateway.kvcache.index.cache_index import CacheIndex
from tests.kvcache.conftest import CLEARED, Index, endpoint, ids, index_of, removed, stored


def room(index: CacheIndex) -> dict[int, int]:
    keys = index.keys(Prompt(ids(1), 17, True))
    return dict(index.match(keys, 17, []).room)


def of_size(capacity: int, events: bool = True) -> Index:
    index = index_of(0)
    index.add(endpoint(0, capacity=capacity, block_size=16), events)
    return index


def test_what_is_not_kept_is_room():
    index = of_size(100)
    assert room(index) == {}  # it may hold anything
    index.set_complete(0)
    assert room(index) == {0: 100}
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    assert room(index) == {0: 68}
    index.apply_one(0, removed(12))
    assert room(index) == {0: 84}
    index.apply_one(0, stored([12, 13, 14, 15, 16, 17], ids(2, 3, 4, 5, 6, 7), parent=11))
    assert room(index) == {}  # less than a block is left, or the engine counts otherwise
    index.apply_one(0, CLEARED)
    assert room(index) == {0: 100}
    index.remove(0)
    assert room(index) == {}


def test_room_is_known_only_where_all_that_is_kept_is_known():
    index = of_size(100)
    index.set_complete(0)
    index.set_partial(0)
    assert room(index) == {}
    index.apply_one(0, stored([11], ids(1)))
    assert room(index) == {}
    index.set_complete(0)
    assert room(index) == {0: 84}
    index.set_replaying(0, True)
    assert room(index) == {}
    index.set_replaying(0, False)
    assert room(index) == {0: 84}
    index.set_events(0, False)
    assert room(index) == {}


def test_an_engine_that_has_not_yet_told_its_size_is_measured_when_it_has():
    """Not with its next event: until then the others would get all that is new."""
    index, late = index_of(0), endpoint(0, block_size=16)
    index.add(late, True)
    index.set_complete(0)
    assert room(index) == {}
    late.metrics = replace(late.metrics, kv_capacity=64)
    assert room(index) == {0: 64}


@pytest.mark.parametrize("events", [True, False])
def test_an_engine_that_is_forgotten_has_room_again_if_its_events_were_heard(events):
    index = of_size(100, events)
    if events:
        index.apply_one(0, stored([11], ids(1)))
        assert room(index) == {0: 84}
    index.clear(0)
    assert room(index) == ({0: 100} if events else {})
