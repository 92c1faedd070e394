"""Our own pauses: a process that was stopped, suspended or moved, or a loop that was held up, must not blame others.

What came meanwhile lies in the sockets, and timers fire before it is read: so one that fires late has one more turn
before it judges, and whoever measures what others take is told how much of it was ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from math import inf

LATE = 0.25
"""Seconds by which a timer may fire late before it does not judge at once: more than a turn of a busy loop takes."""

TURN = 1.0
"""Seconds that it then waits: until what lies in the sockets was read, and who was held up by us had time to go on."""

TICK = 0.1
"""Seconds between two looks at the clock."""

JITTER = 0.05
"""Seconds by which a look may be late without being counted."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def age_clock() -> float:
    """Seconds since an arbitrary start, those in which the machine was suspended among them, where the system (Linux)
    counts them: what others measure the ages of their things by."""
    return time.clock_gettime(_CLOCK)


class Pauses:
    """Measures, while ``watch`` runs, how long the loop did not run although it was to. ``now``: seconds."""

    def __init__(self, now: Callable[[], float] = age_clock) -> None:
        self.now = now
        self._lost = 0.0
        self._due: float | None = None

    def lost(self) -> float:
        """Seconds that were lost until now, in all; only differences mean anything."""
        return self._lost + (0.0 if self._due is None else _beyond(self.now() - self._due))

    async def watch(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                self._due = self.now() + TICK
                await asyncio.sleep(TICK)
                self._lost, self._due = self.lost(), None
        finally:
            self._due = None


def _beyond(late: float) -> float:
    return late if late > JITTER else 0.0


@contextlib.asynccontextmanager
async def fair_timeout(seconds: float) -> AsyncIterator[None]:
    """``asyncio.timeout``, but for one more ``TURN`` where it would end late. Raises TimeoutError."""
    async with asyncio.timeout(None) as limit:
        timer = _FairTimer(limit, seconds)
        try:
            yield
        finally:
            timer.cancel()


class _FairTimer:
    """Of one ``fair_timeout``: no function that names itself, which only the garbage collector could free."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        due = self._loop.time() + seconds
        self._timer = self._loop.call_at(due, self._expire, due)

    def cancel(self) -> None:
        self._timer.cancel()

    def _expire(self, due: float) -> None:
        now = self._loop.time()
        if now - due > LATE:
            self._timer = self._loop.call_at(now + TURN, self._expire, inf)
        else:
            self._limit.reschedule(now)
