"""Admission: limits a model's requests in flight and queues the others, first in, first out.

Rules: requests wait only while all permits are out. If a request is cancelled at the moment that it gets a permit, the
next one gets it. There is no await while the counts are inconsistent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from math import ceil

from gateway.core.observer import Observer
from gateway.errors import Saturated
from gateway.flow.settings import FlowSettings
from gateway.framework import Clock

RATE_WINDOW = 64
"""Releases by which their rate is measured: some seconds of a busy model's traffic."""

SOONEST = 1.0
LATEST = 60.0
"""Bounds of Retry-After, in seconds. The header has whole seconds; an estimate of more than a minute means nothing, and
clients give up."""


class Permit:
    """The right of one request to be in flight, until ``release``. Only ``Admission.try_acquire`` makes one."""

    __slots__ = ("_admission",)
    _admission: Admission | None

    def release(self) -> None:
        """Give it back. A second call does nothing."""
        admission, self._admission = self._admission, None
        if admission is None:
            return
        admission._releases.append(admission._clock.monotonic())
        admission._in_flight -= 1
        if admission._queue:
            admission._admit()


class Admission:
    """The permits and the queue of one model."""

    def __init__(self, settings: FlowSettings, model: str, clock: Clock, observer: Observer) -> None:
        self._settings = settings
        self._model = model
        self._clock = clock
        self._observer = observer
        self._in_flight = 0
        self._queue: OrderedDict[asyncio.Future[Permit], None] = OrderedDict()
        self._releases: deque[float] = deque(maxlen=RATE_WINDOW)

    @property
    def in_flight(self) -> int:
        """Permits that are out."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def set_limits(self, settings: FlowSettings) -> None:
        """Change the limits. If there is room now, the requests that have waited longest get permits at once."""
        self._settings = settings
        self._admit()

    def try_acquire(self) -> Permit | None:
        """A permit if there is room, else None."""
        if self._in_flight >= self._settings.max_in_flight:
            return None
        self._in_flight += 1
        permit = Permit()
        permit._admission = self
        return permit

    async def acquire(self) -> Permit:
        """A permit: at once if there is room, else when it is this request's turn.

        Raises Saturated, with ``retry_after``, if the queue is full or the turn does not come within
        ``queue_timeout``. Cancellation in any phase leaves nothing behind.
        """
        if (permit := self.try_acquire()) is not None:
            return permit
        if len(self._queue) >= self._settings.max_queue:
            raise Saturated(
                f"model {self._model}: {self._in_flight} requests are in flight and {len(self._queue)} are waiting",
                retry_after=self.retry_after(),
            )
        return await self._wait()

    def retry_after(self) -> float:
        """Whole seconds after which a new request may get a permit: the queue's length by the rate of releases."""
        if len(self._releases) < 2:
            return float(min(max(SOONEST, ceil(self._settings.queue_timeout)), LATEST))
        elapsed = self._clock.monotonic() - self._releases[0]
        position = len(self._queue) + 1
        return float(min(max(SOONEST, ceil(position * elapsed / len(self._releases))), LATEST))

    async def _wait(self) -> Permit:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Permit] = loop.create_future()
        self._queue[turn] = None
        self._observer.queued(self._model, len(self._queue))
        # The deadline ends the wait through the future, too. So either the permit or the deadline comes first, and no
        # permit is given while a timeout cancels the task.
        deadline = loop.call_later(self._settings.queue_timeout, self._time_out, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().release()
            raise
        finally:
            deadline.cancel()
            if turn in self._queue:
                del self._queue[turn]
                self._observer.queued(self._model, len(self._queue))

    def _time_out(self, turn: asyncio.Future[Permit]) -> None:
        if not turn.done():
            turn.set_exception(
                Saturated(
                    f"model {self._model}: no room within {self._settings.queue_timeout:g} seconds of waiting",
                    retry_after=self.retry_after(),
                )
            )

    def _admit(self) -> None:
        while self._queue and self._in_flight < self._settings.max_in_flight:
            turn, _ = self._queue.popitem(last=False)
            self._observer.queued(self._model, len(self._queue))
            if not turn.done() and (permit := self.try_acquire()) is not None:
                turn.set_result(permit)
