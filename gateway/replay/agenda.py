"""What happens next in a run, in order of time."""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import Any


class Next(IntEnum):
    """What happens; of what happens at once, the first comes first."""

    EVENTS = 0
    CALL = 1
    STEP = 2
    SCRAPE = 3
    FETCHED = 4
    CHANGE = 5


class Agenda:
    """A queue by time; of what happens at once by ``Next``, and of that in the order in which it was put in."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, Next, int, Any]] = []
        self.pushed = 0

    def push(self, at: float, what: Next, of: Any) -> None:
        """``of``: what it happens to."""
        self.pushed += 1
        heappush(self._queue, (at, what, self.pushed, of))

    def pop(self) -> tuple[float, Next, Any]:
        """Raises IndexError if nothing is left."""
        at, what, _, of = heappop(self._queue)
        return at, what, of

    def left(self) -> list[tuple[float, Next, Any]]:
        """All that is left, in order."""
        return [(at, what, of) for at, what, _, of in sorted(self._queue, key=lambda entry: entry[:3])]
