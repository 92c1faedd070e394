"""How many requests another one books a second, as the rows that it tells show."""

from __future__ import annotations

from math import exp

from gateway.fleet.load.others import Row

MEMORY = 1.0
"""Seconds over which bookings are averaged."""


class Pace:
    """``rate``: bookings a second, when the last row was heard."""

    __slots__ = ("_at", "rate")

    def __init__(self) -> None:
        self.rate = self._at = 0.0

    def add(self, booked: int, now: float) -> None:
        """So many more at ``now``, Clock.monotonic()."""
        self.rate = self.at(now) + booked / MEMORY
        self._at = now

    def at(self, now: float) -> float:
        """``rate``, if nothing was booked since."""
        return self.rate * exp(min(0.0, self._at - now) / MEMORY)


def booked_between(before: Row, row: Row) -> int:
    """How many requests were booked from one row to the next."""
    return max(0, row.requests + row.settled - before.requests - before.settled)
