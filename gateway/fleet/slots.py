"""Slots: small integers by which the cache index knows endpoints, a bit each.

Rules: the smallest free slot is allocated, so that the index's integers stay short. The slot of a dropped endpoint is
free again once the index has cleared its bits, and the endpoint's last requests have ended: what they report until then
would be credited to another endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class SlotAllocator:
    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []
        self._in_use: set[int] = set()
        self._resting: dict[int, Callable[[], bool]] = {}
        self._cleared: dict[int, Callable[[], bool]] = {}

    def allocate(self) -> int:
        """The smallest free slot, from 0."""
        for slot in [slot for slot, busy in self._cleared.items() if not busy()]:
            del self._cleared[slot]
            heappush(self._free, slot)
        if self._free:
            slot = heappop(self._free)
        else:
            slot = self._next
            self._next += 1
        self._in_use.add(slot)
        return slot

    def retire(self, slot: int, busy: Callable[[], bool]) -> None:
        """Its endpoint was dropped. ``busy``: whether requests still run there. Raises KeyError if it is not in use."""
        self._in_use.remove(slot)
        self._resting[slot] = busy

    def release(self, slot: int) -> None:
        """Its bits are cleared. Raises KeyError if it is not retired: a live endpoint's bits would become another's."""
        self._cleared[slot] = self._resting.pop(slot)
