from __future__ import annotations

import pytest

from gateway.fleet.registry import SlotAllocator


def idle() -> bool:
    return False


def test_the_smallest_free_slot_is_handed_out():
    slots = SlotAllocator()
    assert [slots.allocate() for _ in range(4)] == [0, 1, 2, 3]
    for slot in (2, 0):
        slots.retire(slot, idle)
        slots.release(slot)
    assert [slots.allocate() for _ in range(3)] == [0, 2, 4]


def test_a_slot_rests_until_it_is_released():
    slots = SlotAllocator()
    slots.allocate()
    slots.retire(0, idle)
    assert slots.allocate() == 1
    slots.release(0)
    assert slots.allocate() == 0


def test_a_live_slot_cannot_be_released():
    slots = SlotAllocator()
    slots.allocate()
    with pytest.raises(KeyError):
        slots.release(0)
    slots.retire(0, idle)
    slots.release(0)
    with pytest.raises(KeyError):
        slots.release(0)
    with pytest.raises(KeyError):
        slots.retire(0, idle)


def test_a_slot_is_its_endpoints_until_the_last_request_there_has_ended():
    slots = SlotAllocator()
    slots.allocate()
    requests = [1]
    slots.retire(0, lambda: bool(requests))
    slots.release(0)
    assert slots.allocate() == 1
    requests.clear()
    assert slots.allocate() == 0
