from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kvcache.overlay import Overlay
from tests.kvcache.conftest import ManualClock


@pytest.fixture
def overlay(clock):
    return Overlay(clock, seconds=10)


def test_a_prediction_is_believed_for_some_seconds(overlay, clock):
    overlay.predict(3, [1, 2])
    overlay.predict(0, [2])
    assert overlay.masks == {1: 0b1000, 2: 0b1001}
    clock.now += 9.9
    overlay.lapse()
    assert overlay.masks == {1: 0b1000, 2: 0b1001}
    clock.now += 0.1
    overlay.lapse()
    assert overlay.masks == {}


def test_said_again_it_is_believed_for_longer(overlay, clock):
    overlay.predict(0, [1, 2])
    clock.now += 6
    overlay.predict(0, [2])
    clock.now += 6
    overlay.lapse()
    assert overlay.masks == {2: 1}


def test_what_the_engine_confirms_is_no_prediction_any_more(overlay, clock):
    overlay.predict(0, [1, 2])
    overlay.predict(1, [1])
    overlay.confirmed(0, [1, 5])
    assert overlay.masks == {1: 0b10, 2: 0b01}
    overlay.predict(0, [1])
    clock.now += 10
    overlay.lapse()
    assert overlay.masks == {}


def test_forgetting_one_place_leaves_the_others(overlay, clock):
    overlay.predict(0, [1, 2])
    overlay.predict(1, [2])
    overlay.forget(0)
    overlay.forget(7)
    assert overlay.masks == {2: 0b10}
    overlay.predict(0, [3])
    clock.now += 10
    overlay.lapse()
    assert overlay.masks == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["predict", "confirm", "forget", "wait"]), st.integers(0, 2), st.sets(st.integers(0, 5))
        )
    )
)
def test_it_is_what_a_table_of_times_says(steps):
    clock = ManualClock()
    overlay = Overlay(clock, seconds=3)
    until = {}
    for step, place, keys in steps:
        if step == "predict":
            overlay.predict(place, sorted(keys))
            until |= {(place, key): clock.now + 3 for key in keys}
        elif step == "confirm":
            overlay.confirmed(place, keys)
            until = {pair: at for pair, at in until.items() if pair[0] != place or pair[1] not in keys}
        elif step == "forget":
            overlay.forget(place)
            until = {pair: at for pair, at in until.items() if pair[0] != place}
        else:
            clock.now += len(keys)
            overlay.lapse()
            until = {pair: at for pair, at in until.items() if at > clock.now}
        expected = {}
        for one, key in until:
            expected[key] = expected.get(key, 0) | 1 << one
        assert overlay.masks == expected
