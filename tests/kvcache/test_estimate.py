from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kvcache.estimate import LEAST, Estimate
from gateway.kvcache.keys import chain
from gateway.kvcache.layers import Layer
from gateway.kvcache.shelf import Shelf
from tests.kvcache.conftest import held_at, ids


def keys_of(*numbers):
    return chain(ids(*numbers), 16, 1)


class Room(Estimate):
    def __init__(self):
        self.shelf = Shelf()
        super().__init__(self.shelf, 0)

    @property
    def keys(self):
        return held_at(self.shelf, Layer.ESTIMATED)


@pytest.fixture
def estimate():
    return Room()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), max_size=12), st.integers(1, 10))
def test_it_is_a_naive_lru(sent, capacity):
    """Prompts that share nothing but their own shorter forms, so that each is one stretch."""
    estimate, naive = Room(), []
    for number, length in sent:
        keys = keys_of(number, *[9] * (length - 1))
        estimate.sent(keys, capacity)
        for key in reversed(keys[:capacity]):
            if key in naive:
                naive.remove(key)
            naive.append(key)
        # A stretch is used as a whole: its end that was not asked for now stays with it.
        longest = {key: place for place, key in enumerate(keys_of(number, *[9] * 7))}
        own = sorted((key for key in naive if key in longest), key=longest.get, reverse=True)
        naive = [key for key in naive if key not in longest] + own
        naive = naive[-capacity:]
        assert estimate.keys == set(naive)
        assert len(estimate) == len(naive) <= capacity


def test_the_tail_of_a_prompt_goes_first(estimate):
    estimate.sent(keys_of(1, 2, 3), 4)
    estimate.sent(keys_of(7, 8), 4)
    assert estimate.keys == {*keys_of(1, 2), *keys_of(7, 8)}


def test_what_does_not_fit_is_the_tails_loss(estimate):
    estimate.sent(keys_of(1, 2, 3, 4), 2)
    assert estimate.keys == set(keys_of(1, 2))


def test_it_gets_smaller_with_the_engine(estimate):
    estimate.sent(keys_of(1, 2, 3, 4), 4)
    estimate.sent(keys_of(1), 2)
    assert estimate.keys == set(keys_of(1, 2))


def test_a_long_prompt_is_remembered_whole(estimate):
    keys = keys_of(*range(1000))
    estimate.sent(keys, 1000)
    assert estimate.keys == set(keys)
    estimate.sent(keys_of(*range(1000), 1, 2), 2000)
    assert len(estimate) == 1002


def test_answers_correct_the_capacity(estimate):
    for _ in range(100):
        estimate.reported(expected=16, served=False)
    assert estimate.believed == LEAST
    estimate.sent(keys_of(*range(100)), 100)
    assert len(estimate) == 5
    estimate.reported(expected=0, served=True)
    assert estimate.believed == LEAST
    for _ in range(1000):
        estimate.reported(expected=16, served=True)
    assert estimate.believed == 1


def test_it_leaves_the_shelf(estimate):
    estimate.sent(keys_of(*range(100)), 100)
    for _ in estimate.leave():
        pass
    assert estimate.shelf.size == 0
