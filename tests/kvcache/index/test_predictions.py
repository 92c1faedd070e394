from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.kvcache.index.block_table import LEADING, BlockTable
from gateway.kvcache.index.layers import LAYERS, Layer
from gateway.kvcache.index.predictions import (
    COMPUTED_WITHIN,
    EVENTS_WITHIN,
    EXPIRE_LIMIT,
    LOOK_EVERY,
    Predictions,
)
from tests.kvcache.conftest import held_at, keys_of


class Scene:
    def __init__(self, clock):
        self.table = BlockTable()
        self.predictions = Predictions(self.table, clock)

    def predict(self, number, keys):
        return self.predictions.predict(number * LAYERS, keys, now=1)

    def predicted(self, number=0):
        return held_at(self.table, number * LAYERS + Layer.PREDICTED)

    def hold(self, number, keys):
        for chunk, offset, count in self.table.insert(-1, keys, number * LAYERS):
            self.table.mark(chunk, number * LAYERS, LEADING[count] << offset)


@pytest.fixture
def scene(clock):
    return Scene(clock)


def test_a_prediction_lasts_as_long_as_its_prompt_is_under_way(scene, clock):
    scene.predict(3, keys_of(1, 2))
    scene.predictions.computed(scene.predict(0, keys_of(1)))
    clock.now += EVENTS_WITHIN
    scene.predictions.expire(clock.now)
    assert (scene.predicted(3), scene.predicted(0)) == (set(keys_of(1, 2)), set())
    clock.now = COMPUTED_WITHIN - 0.1
    scene.predictions.expire(clock.now)
    assert scene.predicted(3) == set(keys_of(1, 2))
    clock.now = COMPUTED_WITHIN
    scene.predictions.expire(clock.now)
    assert scene.table.size == 0


def test_its_events_may_take_some_seconds_once_it_is_computed(scene, clock):
    prediction = scene.predict(0, keys_of(1))
    clock.now += 60
    scene.predictions.computed(prediction)
    clock.now += EVENTS_WITHIN - 0.1
    scene.predictions.computed(prediction)
    scene.predictions.expire(clock.now)
    assert scene.predicted() == set(keys_of(1))
    clock.now += 0.1
    scene.predictions.expire(clock.now)
    assert scene.predicted() == set()


def test_what_several_predict_lasts_until_the_last_of_them_ends(scene):
    one, other, longer = (scene.predict(0, keys_of(*numbers)) for numbers in ((1, 2), (1, 2), (1, 2, 3)))
    scene.predictions.withdraw(one)
    scene.predictions.withdraw(one)
    assert scene.predicted() == set(keys_of(1, 2, 3))
    scene.predictions.withdraw(longer)
    assert scene.predicted() == set(keys_of(1, 2))
    scene.predictions.withdraw(other)
    assert scene.table.size == 0


def test_what_the_engine_holds_is_predicted_too_and_outlives_its_eviction(scene):
    scene.hold(0, keys_of(1, 2))
    prediction = scene.predict(0, keys_of(1, 2, 3))
    chunk, _ = scene.table.heads.values()
    scene.predictions.evicting(chunk, LEADING[2], prediction)
    scene.table.unmark_all(chunk, 0)
    assert scene.predicted() == set(keys_of(1, 2, 3))
    assert chunk.used == 1
    scene.predictions.withdraw(prediction)
    assert scene.table.size == 0


def test_an_endpoint_leaves_alone(scene, clock):
    left = scene.predict(0, keys_of(1, 2))
    scene.predict(1, keys_of(1))
    assert sum(1 for _ in scene.predictions.remove_all(0)) == 1
    assert sum(1 for _ in scene.predictions.remove_all(7 * LAYERS)) == 0
    assert (scene.predicted(), scene.predicted(1)) == (set(), set(keys_of(1)))
    # Whoever gets the place next is not told by who had it before.
    scene.predict(0, keys_of(1, 2))
    scene.predictions.withdraw(left)
    assert scene.predicted() == set(keys_of(1, 2))
    clock.now += COMPUTED_WITHIN
    scene.predictions.expire(clock.now)
    assert scene.table.size == 0


def test_many_expire_in_slices(scene, clock):
    for number in range(EXPIRE_LIMIT + 10):
        scene.predict(0, keys_of(number))
    clock.now += COMPUTED_WITHIN
    scene.predictions.expire(clock.now)
    assert len(scene.predicted()) == 10
    scene.predictions.expire(clock.now)
    assert scene.predicted() == set()


def test_what_lapses_beside_many_requests_is_looked_at_together(scene, clock):
    for number in range(3):
        scene.predict(0, keys_of(number))
        clock.now += LOOK_EVERY / 2
    clock.now = COMPUTED_WITHIN
    looks = []
    for _ in range(5):
        if clock.now >= scene.predictions.due_at:
            scene.predictions.expire(clock.now)
            looks.append((clock.now, len(scene.predicted())))
        clock.now += LOOK_EVERY / 4
    assert looks == [(COMPUTED_WITHIN, 2), (COMPUTED_WITHIN + LOOK_EVERY, 0)]


steps = st.tuples(
    st.sampled_from(["predict", "computed", "withdraw", "leave", "wait"]),
    st.integers(0, 2),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
)


@given(st.lists(steps))
def test_it_is_what_a_table_of_times_says(steps):
    clock = ManualClock()
    scene = Scene(clock)
    live = []  # [prediction, endpoint, keys, until]
    for step, number, prompt in steps:
        if step == "predict":
            keys = keys_of(*prompt)
            live.append([scene.predict(number, keys), number, keys, clock.now + COMPUTED_WITHIN])
        elif step == "leave":
            for _ in scene.predictions.remove_all(number * LAYERS):
                pass
            live = [one for one in live if one[1] != number]
        elif step == "wait":
            clock.now += 2 * len(prompt)
            scene.predictions.expire(clock.now)
            live = [one for one in live if one[3] > clock.now]
        elif live:
            one = live[len(prompt) % len(live)]
            if step == "computed":
                scene.predictions.computed(one[0])
                one[3] = min(one[3], clock.now + EVENTS_WITHIN)
            else:
                scene.predictions.withdraw(one[0])
                live.remove(one)
        for endpoint in range(3):
            assert scene.predicted(endpoint) == {key for one in live if one[1] == endpoint for key in one[2]}


def test_who_asks_is_told_once_when_all_that_was_predicted_is_reported(scene):
    told = []
    prediction = scene.predict(0, keys_of(1, 2))
    prediction.then = lambda: told.append(True)
    other = scene.predict(0, keys_of(1))
    chunks = [(chunk, bits) for chunk, bits in prediction.marks.items()]
    first = chunks[0][1] & -chunks[0][1]
    scene.predictions.confirmed(0, chunks[0][0], first)
    assert (told, other.marks) == ([], {})
    for chunk, bits in chunks:
        scene.predictions.confirmed(0, chunk, bits)
    assert (told, prediction.marks) == ([True], {})
    for chunk, bits in chunks:
        scene.predictions.confirmed(0, chunk, bits)
    assert told == [True]
