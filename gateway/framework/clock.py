"""Time by injection: replay runs the same code in virtual time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class ManualClock:
    """Stands still until ``now`` is set: of a replay in virtual time, of a benchmark and of a plugin's tests.

    ``now``: seconds, what ``monotonic`` reads; ``wall`` reads ``epoch`` seconds more.
    """

    def __init__(self, now: float = 0.0, *, epoch: float = 0.0) -> None:
        self.now = now
        self._epoch = epoch

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self._epoch + self.now
