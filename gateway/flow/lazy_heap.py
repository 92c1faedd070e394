"""A heap whose items can be taken out, and change their places, in any order."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SMALL = 16
"""Entries of a heap that is not cleared however many of them are dead."""


class LazyHeap(Generic[T]):
    """Items by a pair of numbers, least first; of equals, the one that was set first. Each item is in it once.

    An item that is taken out, or gets another key, leaves its entry where it is: dead, until it comes to the top. Once
    more than half of the entries are dead they are all cleared. So each call takes O(log n) on average, and there are
    never more than twice as many entries as items, but for ``SMALL``.
    """

    __slots__ = ("_heap", "_live", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, float, int, T]] = []
        self._live: dict[T, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: T) -> bool:
        return item in self._live

    @property
    def entries(self) -> int:
        """Those that take up memory, dead ones as well."""
        return len(self._heap)

    def set(self, item: T, key: float, second: float = 0.0) -> None:
        """Put ``item`` in, or to another place. ``second`` decides among equals."""
        self._number = number = self._number + 1
        self._live[item] = number
        heappush(self._heap, (key, second, number, item))
        self._clear()

    def discard(self, item: T) -> bool:
        """Take ``item`` out; False: it was not there."""
        if self._live.pop(item, None) is None:
            return False
        self._clear()
        return True

    def first(self) -> T | None:
        """The item of the least key; None: there is none."""
        entry = self._top()
        return None if entry is None else entry[3]

    def top(self) -> tuple[T, float]:
        """The item of the least key, and this key. Raises IndexError if there is none."""
        entry = self._top()
        if entry is None:
            raise IndexError("the heap is empty")
        return entry[3], entry[0]

    def pop(self) -> T | None:
        """Take out the item of the least key; None: there is none."""
        entry = self._top()
        if entry is None:
            return None
        heappop(self._heap)
        del self._live[entry[3]]
        self._clear()
        return entry[3]

    def _top(self) -> tuple[float, float, int, T] | None:
        heap, live = self._heap, self._live
        while heap:
            entry = heap[0]
            if live.get(entry[3]) == entry[2]:
                return entry
            heappop(heap)
        return None

    def _clear(self) -> None:
        heap, live = self._heap, self._live
        if not live:  # what left must not be kept until something comes
            heap.clear()
        elif len(heap) > 2 * len(live) + SMALL:
            self._heap = [entry for entry in heap if live.get(entry[3]) == entry[2]]
            heapify(self._heap)
