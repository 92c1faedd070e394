from __future__ import annotations

from gateway.kvcache.layers import LAYERS
from gateway.kvcache.places import Places


def test_a_place_is_free_when_it_is_cleared():
    places = Places()
    assert [places.take(), places.take()] == [0, LAYERS]
    places.leave(0, iter([None] * 5))
    assert places.wait
    assert not places.sweep(5)
    assert places.take() == 2 * LAYERS
    assert places.sweep(1)
    assert places.take() == 0
    assert not places.wait


def test_one_is_cleared_after_the_other():
    places = Places()
    for _ in range(3):
        places.take()
    for place in (2 * LAYERS, 0):
        places.leave(place, iter([None] * 4))
    assert not places.sweep(5)
    assert places.take() == 2 * LAYERS
    assert places.sweep(10)
    assert places.take() == 0


def test_clearing_ends_where_the_budget_does():
    places = Places()
    work = iter([None] * 10)
    places.leave(places.take(), work)
    assert not places.sweep(3)
    assert len(list(work)) == 7
