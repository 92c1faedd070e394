from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kvcache.index.approximate import LEAST, ApproximateCache
from gateway.kvcache.index.block_table import BlockTable
from gateway.kvcache.index.layers import Layer
from tests.kvcache.conftest import held_at, keys_of


class CacheRoom:
    def __init__(self):
        self.table = BlockTable()
        self.cache = ApproximateCache(self.table, 0)

    def __len__(self):
        return len(self.cache)

    def __getattr__(self, name):
        return getattr(self.cache, name)

    @property
    def keys(self):
        return held_at(self.table, Layer.APPROXIMATE)


@pytest.fixture
def cache():
    return CacheRoom()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=12), st.integers(1, 10))
def test_it_is_a_naive_lru(sent, capacity):
    """Prompts that share nothing but their own shorter forms, so that each is one chunk."""
    cache, naive = CacheRoom(), []
    for number, length in sent:
        keys = keys_of(number, *[9] * (length - 1))
        cache.add(keys, capacity)
        for key in reversed(keys[:capacity]):
            if key in naive:
                naive.remove(key)
            naive.append(key)
        # A chunk is used as a whole: its end that was not asked for now stays with it.
        longest = {key: column for column, key in enumerate(keys_of(number, *[9] * 7))}
        own = sorted((key for key in naive if key in longest), key=longest.get, reverse=True)
        naive = [key for key in naive if key not in longest] + own
        naive = naive[-capacity:]
        assert cache.keys == set(naive)
        assert len(cache) == len(naive) <= capacity


def test_the_tail_of_a_prompt_goes_first(cache):
    cache.add(keys_of(1, 2, 3), 4)
    cache.add(keys_of(7, 8), 4)
    assert cache.keys == {*keys_of(1, 2), *keys_of(7, 8)}


def test_what_does_not_fit_is_the_tails_loss(cache):
    cache.add(keys_of(1, 2, 3, 4), 2)
    assert cache.keys == set(keys_of(1, 2))


def test_it_gets_smaller_with_the_engine(cache):
    cache.add(keys_of(1, 2, 3, 4), 4)
    cache.add(keys_of(1), 2)
    assert cache.keys == set(keys_of(1, 2))


def test_a_long_prompt_is_remembered_whole(cache):
    keys = keys_of(*range(1000))
    cache.add(keys, 1000)
    assert cache.keys == set(keys)
    cache.add(keys_of(*range(1000), 1, 2), 2000)
    assert len(cache) == 1002


def test_answers_correct_the_capacity(cache):
    for _ in range(100):
        cache.adjust(expected=16, served=False)
    assert cache.believed == LEAST
    cache.add(keys_of(*range(100)), 100)
    assert len(cache) == 5
    cache.adjust(expected=0, served=True)
    assert cache.believed == LEAST
    for _ in range(1000):
        cache.adjust(expected=16, served=True)
    assert cache.believed == 1


def test_it_leaves_the_table(cache):
    cache.add(keys_of(*range(100)), 100)
    for _ in cache.remove_all():
        pass
    assert cache.table.size == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 200)), max_size=12), st.integers(1, 400))
def test_what_is_kept_is_restored_in_another_table(sent, capacity):
    cache, again = CacheRoom(), CacheRoom()
    for number, length in sent:
        cache.add(keys_of(number, *[9] * (length - 1)), capacity)
    cache.adjust(16, False)
    again.restore(cache.keep(), cache.believed, 10**6)
    assert (again.keys, again.believed) == (cache.keys, cache.believed)
    assert again.keep() == cache.keep(), "in the same order"
    for room in (cache, again):
        room.add(keys_of(0, *[9] * 99), capacity)
    assert again.keys <= cache.keys | again.keys
    assert set(keys_of(0, *[9] * 99)[:1]) <= again.keys


def test_the_least_recently_used_of_what_is_restored_goes_first():
    cache, again = CacheRoom(), CacheRoom()
    for number in range(4):
        cache.add(keys_of(number, 9), 100)
    again.restore(cache.keep(), 1.0, 4)
    assert again.keys == {*keys_of(2, 9), *keys_of(3, 9)}
