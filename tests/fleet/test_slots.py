from __future__ import annotations

import pytest

from gateway.fleet.slots import Slots


def idle() -> bool:
    return False


def test_the_smallest_free_slot_is_handed_out():
    slots = Slots()
    assert [slots.take() for _ in range(4)] == [0, 1, 2, 3]
    for slot in (2, 0):
        slots.rest(slot, idle)
        slots.release(slot)
    assert [slots.take() for _ in range(3)] == [0, 2, 4]


def test_a_slot_rests_until_it_is_released():
    slots = Slots()
    slots.take()
    slots.rest(0, idle)
    assert slots.take() == 1
    slots.release(0)
    assert slots.take() == 0


def test_a_live_slot_cannot_be_released():
    slots = Slots()
    slots.take()
    with pytest.raises(KeyError):
        slots.release(0)
    slots.rest(0, idle)
    slots.release(0)
    with pytest.raises(KeyError):
        slots.release(0)
    with pytest.raises(KeyError):
        slots.rest(0, idle)


def test_a_slot_is_its_endpoints_until_the_last_request_there_has_ended():
    slots = Slots()
    slots.take()
    requests = [1]
    slots.rest(0, lambda: bool(requests))
    slots.release(0)
    assert slots.take() == 1
    requests.clear()
    assert slots.take() == 0
