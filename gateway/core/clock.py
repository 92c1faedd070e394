"""The two clocks: the machine's, and one that stands still until it is set."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class ManualClock:
    """Stands still until ``now`` is set: of a replay in virtual time, of a benchmark and of tests.

    ``now``: seconds, what ``monotonic`` reads; ``wall`` reads ``epoch`` seconds more.
    """

    def __init__(self, now: float = 0.0, *, epoch: float = 0.0) -> None:
        self.now = now
        self._epoch = epoch

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self._epoch + self.now
