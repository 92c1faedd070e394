from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.kvcache.index.hash_map import BUCKET, CROWD, CompactHashMap, HashMap, Packing, as_tuple
from tests.support.examples import examples

SOON = Packing(above=0, recent=2, least=1, batch=1)

LARGEST = 2**64 - 1


class InTwoAges(RuleBasedStateMachine):
    """HashMap against a dictionary."""

    known = st.one_of(st.integers(0, 20), st.integers(0, LARGEST), st.integers(0, 300).map(lambda number: number << 40))
    where = st.one_of(
        st.integers(0, 2**48 - 1),
        st.builds(lambda first, count: tuple(range(first, first + count)), st.integers(0, 2**40), st.integers(0, 5)),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
    )

    def __init__(self):
        super().__init__()
        self.names_ = HashMap()
        self.naive = {}

    @rule(block_hash=known, where=where)
    def put(self, block_hash, where):
        if block_hash not in self.names_.packed:
            self.names_.recent[block_hash] = self.naive[block_hash] = where

    @rule(first=known, count=st.integers(1, 200))
    def put_many(self, first, count):
        for block_hash in range(first, min(first + count, LARGEST)):
            if block_hash not in self.names_:
                self.names_.recent[block_hash] = self.naive[block_hash] = block_hash & 0xFFFF

    @rule(block_hash=known)
    def pop(self, block_hash):
        assert self.names_.pop(block_hash) == self.naive.pop(block_hash, None)

    @rule(most=st.integers(1, 300))
    def pack(self, most):
        self.names_.pack(SOON, most)

    @rule(count=st.integers(1, 100))
    def pop_oldest(self, count):
        found = self.names_.pop_oldest(count)
        assert len(found) == min(count, len(self.naive))
        for block_hash, where in found:
            assert self.naive.pop(block_hash) == where

    @rule()
    def pop_all(self):
        assert dict(self.names_.pop_all().drain()) == self.naive
        self.naive.clear()

    @invariant()
    def the_same_is_there(self):
        assert len(self.names_) == len(self.naive)
        assert {block_hash: self.names_.get(block_hash) for block_hash in self.naive} == self.naive
        for block_hash in (*range(20), *list(self.naive)[:20]):
            assert self.names_.get(block_hash) == self.naive.get(block_hash)
            assert (block_hash in self.names_) is (block_hash in self.naive)


InTwoAges.TestCase.settings = examples(60, stateful_step_count=40)
TestInTwoAges = InTwoAges.TestCase


def packed(count, step=1):
    known = CompactHashMap()
    left = known.add([(number * step, number) for number in range(count)])
    return known, left


def test_what_is_no_hash_is_not_there():
    known, left = packed(3)
    assert left == []
    for odd in (None, b"\0", "0", -1, 2**64, 0.0):
        assert odd not in known
        assert known.pop(odd) is None
    with pytest.raises(KeyError):
        HashMap()[1]


def test_a_location_that_looks_like_a_hash_is_not_one():
    known = CompactHashMap()
    known.add([(5 << 32, 7), (6 << 32, 5 << 32)])
    assert known.get(7) is None
    assert known.get(6 << 32) == 5 << 32
    known.pop(5 << 32)
    assert 5 << 32 not in known


def test_the_table_grows_with_what_is_in_it():
    known, left = packed(100 * BUCKET)
    assert left == []
    assert len(known._buckets) == 100
    assert max(map(len, known._buckets)) <= 2 * BUCKET * 16
    assert all(known.get(number) == number for number in range(100 * BUCKET))


def test_hashes_that_crowd_a_bucket_stay_young():
    """An engine's whose lowest bits are all alike: a bucket is searched from its start."""
    known, left = packed(4 * CROWD, step=2**40)
    assert len(known) == CROWD
    assert len(left) == 3 * CROWD
    both = HashMap()
    both.recent.update((number * 2**40, number) for number in range(4 * CROWD))
    both.pack(SOON, 4 * CROWD)
    assert 0 < len(both.packed) <= CROWD
    assert len(both) == 4 * CROWD
    before = list(both.recent)
    both.pack(SOON, 4 * CROWD)  # they are not tried again
    assert list(both.recent) == before


def test_what_came_first_leaves_first_nearly():
    known = CompactHashMap()
    for start in range(0, 64 * 1024, 1024):
        known.add([((start + number) * 0x9E3779B97F4A7C15 & LARGEST, start + number) for number in range(1024)])
    found = [where for _, where in known.pop_oldest(4 * 1024)]
    assert sum(where < 8 * 1024 for where in found) > 0.9 * len(found)


def test_one_in_some_stays_young_and_no_small_number_is_packed():
    known = HashMap()
    known.recent.update((number, number) for number in range(10_000))
    known.pack(Packing(recent=4, least=100, batch=50), 1000)
    assert (len(known.recent), len(known.packed)) == (9000, 1000)
    assert min(known.recent) == 1000
    for _ in range(10):
        known.pack(Packing(recent=4, least=100, batch=50), 1000)
    assert len(known.recent) == 2500
    known.recent[10_000] = 1
    known.pack(Packing(recent=4, least=100, batch=50), 1000)
    assert len(known.recent) == 2501


def test_of_a_small_index_only_what_would_make_the_dict_slow_to_grow_is_packed():
    known, packing = HashMap(), Packing(recent=4, least=100, most=5000, batch=50)
    known.recent.update((number, number) for number in range(5049))
    assert not known.pack(packing, 1000, large=False)
    known.recent.update((number, number) for number in range(10_000))
    while known.pack(packing, 1000, large=False):
        pass
    assert (len(known.recent), len(known)) == (5000, 10_000)
    known.recent.update((number, number) for number in range(10_000, 30_000))
    while known.pack(packing, 1000):
        pass
    assert (len(known.recent), len(known)) == (5000, 30_000)


def test_what_is_drained_is_freed_on_the_way():
    known = HashMap()
    known.recent.update((number, number) for number in range(10_000))
    known.pack(Packing(recent=2, least=0, batch=1), 5000)
    work = known.drain()
    assert [next(work)[1] for _ in range(7500)]
    assert (known.packed._buckets, len(known.recent)) == ([], 2500)
    assert len(list(work)) == 2500


def test_locations_of_a_block():
    assert as_tuple(0) == (0,)
    assert as_tuple((3, 4)) == (3, 4)
    assert as_tuple(()) == ()
