"""Slots: the small integers by which endpoints are known to the cache index, a bit each.

Rules: the smallest free one is handed out, so that the index's integers stay short; one that was given back by its
endpoint rests until whoever has it in an index says that its bits are cleared, and then until the endpoint's last
requests have ended: what they still say of it would be said of another.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Slots:
    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []
        self._in_use: set[int] = set()
        self._resting: dict[int, Callable[[], bool]] = {}
        self._cleared: dict[int, Callable[[], bool]] = {}

    def take(self) -> int:
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

    def rest(self, slot: int, busy: Callable[[], bool]) -> None:
        """Its endpoint is gone; its bits are not, nor its requests while ``busy()``. Raises KeyError if no endpoint
        has it."""
        self._in_use.remove(slot)
        self._resting[slot] = busy

    def release(self, slot: int) -> None:
        """Its bits are cleared. Raises KeyError if it is not at rest: bits of a live endpoint would be another's."""
        self._cleared[slot] = self._resting.pop(slot)
