from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import ManualClock
from gateway.kvcache.keys import chain
from gateway.kvcache.layers import LAYERS, Layer
from gateway.kvcache.overlay import LAPSE, Overlay
from gateway.kvcache.shelf import ALL, Shelf
from tests.kvcache.conftest import held_at, ids


def keys_of(*numbers):
    return chain(ids(*numbers), 16, 1)


class Scene:
    def __init__(self, clock):
        self.shelf = Shelf()
        self.overlay = Overlay(self.shelf, clock, seconds=10)

    def predict(self, number, keys):
        self.overlay.predict(number * LAYERS, keys, now=1)

    def predicted(self, number=0):
        return held_at(self.shelf, number * LAYERS + Layer.PREDICTED)

    def hold(self, number, keys):
        for stretch, offset, count in self.shelf.enter(-1, keys):
            self.shelf.mark(stretch, number * LAYERS, ALL[count] << offset)


@pytest.fixture
def scene(clock):
    return Scene(clock)


def test_a_prediction_is_believed_for_some_seconds(scene, clock):
    scene.predict(3, keys_of(1, 2))
    scene.predict(0, keys_of(1))
    clock.now += 9.9
    scene.overlay.lapse()
    assert (scene.predicted(3), scene.predicted(0)) == (set(keys_of(1, 2)), set(keys_of(1)))
    clock.now += 0.1
    scene.overlay.lapse()
    assert scene.shelf.size == 0
    assert not scene.overlay


def test_said_again_it_is_believed_for_longer(scene, clock):
    scene.predict(0, keys_of(1, 2, 3))
    clock.now += 6
    scene.predict(0, keys_of(1, 2, 4))
    clock.now += 6
    scene.overlay.lapse()
    assert scene.predicted() == set(keys_of(1, 2, 4))


def test_what_the_engine_holds_is_not_predicted(scene):
    scene.hold(0, keys_of(1, 2))
    scene.predict(0, keys_of(1, 2))
    assert not scene.overlay
    scene.predict(0, keys_of(1, 2, 3))
    assert scene.predicted() == set(keys_of(1, 2, 3)[2:])
    assert next(iter(scene.shelf.heads.values())).used == 1


def test_what_is_withdrawn_does_not_come_back(scene, clock):
    scene.predict(0, keys_of(1, 2))
    scene.predict(1, keys_of(1))
    (stretch,) = scene.shelf.heads.values()
    scene.overlay.withdraw(0, stretch, 0b11)
    assert (scene.predicted(), scene.predicted(1)) == (set(), set(keys_of(1)))
    clock.now += 5
    scene.predict(0, keys_of(1))
    clock.now += 5
    scene.overlay.lapse()
    assert (scene.predicted(), scene.predicted(1)) == (set(keys_of(1)), set())


def test_an_endpoint_leaves_alone(scene, clock):
    scene.predict(0, keys_of(1, 2))
    scene.predict(1, keys_of(1))
    assert sum(1 for _ in scene.overlay.leave(0)) == 1
    assert sum(1 for _ in scene.overlay.leave(7 * LAYERS)) == 0
    assert (scene.predicted(), scene.predicted(1)) == (set(), set(keys_of(1)))
    clock.now += 10
    scene.overlay.lapse()
    assert scene.shelf.size == 0


def test_many_lapse_in_slices(scene, clock):
    for number in range(LAPSE + 10):
        scene.predict(0, keys_of(number))
    clock.now += 10
    scene.overlay.lapse()
    assert len(scene.predicted()) == 10
    scene.overlay.lapse()
    assert scene.predicted() == set()


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.sampled_from(["predict", "leave", "wait"]), st.integers(0, 2), prompts)))
def test_it_is_what_a_table_of_times_says(steps):
    clock = ManualClock()
    scene = Scene(clock)
    until = {}
    for step, number, prompt in steps:
        keys = keys_of(*prompt)
        if step == "predict":
            scene.predict(number, keys)
            until |= {(number, key): clock.now + 10 for key in keys}
        elif step == "leave":
            for _ in scene.overlay.leave(number * LAYERS):
                pass
            until = {pair: at for pair, at in until.items() if pair[0] != number}
        else:
            clock.now += 3 * len(prompt)
            scene.overlay.lapse()
            until = {pair: at for pair, at in until.items() if at > clock.now}
        for one in range(3):
            assert scene.predicted(one) == {key for (other, key) in until if other == one}
