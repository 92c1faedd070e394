from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.kvcache.names import BUCKET, CROWD, Ages, Names, Packed, locations

SOON = Ages(above=0, young=2, least=1, chunk=1)

LARGEST = 2**64 - 1


class InTwoAges(RuleBasedStateMachine):
    """Names against a dictionary."""

    names = st.one_of(st.integers(0, 20), st.integers(0, LARGEST), st.integers(0, 300).map(lambda number: number << 40))
    where = st.one_of(
        st.integers(0, 2**48 - 1),
        st.builds(lambda first, count: tuple(range(first, first + count)), st.integers(0, 2**40), st.integers(0, 5)),
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
    )

    def __init__(self):
        super().__init__()
        self.names_ = Names()
        self.naive = {}

    @rule(name=names, where=where)
    def put(self, name, where):
        if name not in self.names_.old:
            self.names_.young[name] = self.naive[name] = where

    @rule(first=names, count=st.integers(1, 200))
    def put_many(self, first, count):
        for name in range(first, min(first + count, LARGEST)):
            if name not in self.names_:
                self.names_.young[name] = self.naive[name] = name & 0xFFFF

    @rule(name=names)
    def pop(self, name):
        assert self.names_.pop(name) == self.naive.pop(name, None)

    @rule(most=st.integers(1, 300))
    def age(self, most):
        self.names_.age(SOON, most)

    @rule(count=st.integers(1, 100))
    def pop_oldest(self, count):
        found = self.names_.pop_oldest(count)
        assert len(found) == min(count, len(self.naive))
        for name, where in found:
            assert self.naive.pop(name) == where

    @rule()
    def pop_all(self):
        assert dict(self.names_.pop_all().items()) == self.naive
        self.naive.clear()

    @invariant()
    def the_same_is_there(self):
        assert dict(self.names_.items()) == self.naive
        assert len(self.names_) == len(self.naive) == len(list(self.names_.values()))
        for name in (*range(20), *list(self.naive)[:20]):
            assert self.names_.get(name) == self.naive.get(name)
            assert (name in self.names_) is (name in self.naive)


InTwoAges.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestInTwoAges = InTwoAges.TestCase


def packed(count, step=1):
    names = Packed()
    left = names.add([(number * step, number) for number in range(count)])
    return names, left


def test_what_is_no_hash_is_not_there():
    names, left = packed(3)
    assert left == []
    for odd in (None, b"\0", "0", -1, 2**64, 0.0):
        assert odd not in names
        assert names.pop(odd) is None
    with pytest.raises(KeyError):
        Names()[1]


def test_a_location_that_looks_like_a_hash_is_not_one():
    names = Packed()
    names.add([(5 << 32, 7), (6 << 32, 5 << 32)])
    assert names.get(7) is None
    assert names.get(6 << 32) == 5 << 32
    names.pop(5 << 32)
    assert 5 << 32 not in names


def test_the_table_grows_with_what_is_in_it():
    names, left = packed(100 * BUCKET)
    assert left == []
    assert len(names._buckets) == 100
    assert max(map(len, names._buckets)) <= 2 * BUCKET * 16
    assert all(names.get(number) == number for number in range(100 * BUCKET))


def test_hashes_that_crowd_a_bucket_stay_young():
    """An engine's whose lowest bits are all alike: a bucket is searched from its start."""
    names, left = packed(4 * CROWD, step=2**40)
    assert len(names) == CROWD
    assert len(left) == 3 * CROWD
    both = Names()
    both.young.update((number * 2**40, number) for number in range(4 * CROWD))
    both.age(SOON, 4 * CROWD)
    assert 0 < len(both.old) <= CROWD
    assert len(both) == 4 * CROWD
    before = list(both.young)
    both.age(SOON, 4 * CROWD)  # they are not tried again
    assert list(both.young) == before


def test_what_came_first_leaves_first_nearly():
    names = Packed()
    for start in range(0, 64 * 1024, 1024):
        names.add([((start + number) * 0x9E3779B97F4A7C15 & LARGEST, start + number) for number in range(1024)])
    found = [where for _, where in names.pop_oldest(4 * 1024)]
    assert sum(where < 8 * 1024 for where in found) > 0.9 * len(found)


def test_one_in_some_stays_young_and_no_small_number_is_packed():
    names = Names()
    names.young.update((number, number) for number in range(10_000))
    names.age(Ages(young=4, least=100, chunk=50), 1000)
    assert (len(names.young), len(names.old)) == (9000, 1000)
    assert min(names.young) == 1000
    for _ in range(10):
        names.age(Ages(young=4, least=100, chunk=50), 1000)
    assert len(names.young) == 2500
    names.young[10_000] = 1
    names.age(Ages(young=4, least=100, chunk=50), 1000)
    assert len(names.young) == 2501


def test_locations_of_a_block():
    assert locations(0) == (0,)
    assert locations((3, 4)) == (3, 4)
    assert locations(()) == ()
