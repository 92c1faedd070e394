"""The queue of events in a run, ordered by time."""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import Any


class Next(IntEnum):
    """The kinds of events. Of events at the same time, the lower number comes first."""

    EVENTS = 0
    CALL = 1
    STEP = 2
    SCRAPE = 3
    FETCHED = 4
    CHANGE = 5


class Agenda:
    """A queue ordered by time, then by ``Next``, then by the order of insertion."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, Next, int, Any]] = []
        self.pushed = 0

    def push(self, at: float, what: Next, of: Any) -> None:
        """Add an event. ``of``: the object that it happens to."""
        self.pushed += 1
        heappush(self._queue, (at, what, self.pushed, of))

    def pop(self) -> tuple[float, Next, Any]:
        """Remove and return the next event. Raises IndexError if the queue is empty."""
        at, what, _, of = heappop(self._queue)
        return at, what, of
