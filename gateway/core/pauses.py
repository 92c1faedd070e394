"""The gateway's own pauses: if its process was stopped, suspended or moved, or its event loop was held up, engines and
clients must not seem slow.

After a pause timers fire before the bytes that arrived meanwhile are read. So a timer that fires late waits for one
more iteration of the loop before it acts. Code that measures engines subtracts the time that was lost here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from math import inf

LATE = 0.25
"""A timer that fires late by more seconds than this waits once more: more than an iteration of a busy loop takes."""

TURN = 1.0
"""Seconds that it then waits: enough to read the bytes in the sockets, and for peers that waited for us to continue."""

TICK = 0.1
"""Seconds between two readings of the clock."""

JITTER = 0.05
"""Seconds by which a reading may be late without being counted as a pause."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def age_clock() -> float:
    """Seconds since an arbitrary start. They include the time in which the machine was suspended, if the system (Linux)
    counts it. Use it for ages that another machine measures, too."""
    return time.clock_gettime(_CLOCK)


class Pauses:
    """Measures, while someone is ``watching``, how long the loop did not run although it was to. ``now``: seconds."""

    def __init__(self, now: Callable[[], float] = age_clock) -> None:
        self.now = now
        self._lost = 0.0
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watchers = 0

    def lost(self) -> float:
        """Seconds that were lost in total; only differences have a meaning."""
        return self._lost + (0.0 if self._due is None else _beyond(self.now() - self._due))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Measure meanwhile: while nobody waits for an engine, no timer runs."""
        self._watchers += 1
        if self._timer is None:
            self._look(asyncio.get_running_loop())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers and self._timer is not None:
                self._lost = self.lost()
                self._timer.cancel()
                self._due = self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lost = self.lost()
        self._due = self.now() + TICK
        self._timer = loop.call_later(TICK, self._look, loop)


def _beyond(late: float) -> float:
    return late if late > JITTER else 0.0


@contextlib.asynccontextmanager
async def fair_timeout(seconds: float) -> AsyncIterator[None]:
    """``asyncio.timeout`` that waits for one more ``TURN`` if it fires late. Raises TimeoutError."""
    async with asyncio.timeout(None) as limit:
        timer = _FairTimer(limit, seconds)
        try:
            yield
        finally:
            timer.cancel()


class _FairTimer:
    """The timer of one ``fair_timeout``. It is an object, since a function that refers to itself is a reference
    cycle."""

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
