"""Slots: the small integers by which endpoints are known to the cache index, a bit each.

Rules: the smallest free one is handed out, so that the index's integers stay short; one that was given back by its
endpoint rests until whoever has it in an index says that its bits are cleared.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Slots:
    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []
        self._in_use: set[int] = set()
        self._resting: set[int] = set()

    def take(self) -> int:
        """The smallest free slot, from 0."""
        if self._free:
            slot = heappop(self._free)
        else:
            slot = self._next
            self._next += 1
        self._in_use.add(slot)
        return slot

    def rest(self, slot: int) -> None:
        """Its endpoint is gone; its bits are not. Raises KeyError if no endpoint has it."""
        self._in_use.remove(slot)
        self._resting.add(slot)

    def release(self, slot: int) -> None:
        """Its bits are cleared. Raises KeyError if it is not at rest: bits of a live endpoint would be another's."""
        self._resting.remove(slot)
        heappush(self._free, slot)
