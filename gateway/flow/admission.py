"""How many requests of a model are let on, and which waits: first come, first served.

Rules: while anyone waits, every place is taken. A place belongs to exactly one permit at any time; one that was handed
to a request which is cancelled at that very moment goes to the next. Nothing here awaits while the counts are
inconsistent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from math import ceil

from gateway.errors import Saturated
from gateway.flow.settings import FlowSettings
from gateway.framework import Clock, Observer

REMEMBERED = 64
"""Departures by which the rate of departures is measured: a handful of seconds of a busy model's traffic."""

SOONEST = 1.0
LATEST = 60.0
"""Seconds of Retry-After. It is a whole number of at least one second; beyond a minute an estimate from the last
departures says nothing, and clients give up."""


class Permit:
    """One place among those in flight, until ``leave``."""

    __slots__ = ("_admission",)

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission

    def leave(self) -> None:
        """Give the place back. Again: nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._left()


class Admission:
    """The gate of one model."""

    def __init__(self, settings: FlowSettings, model: str, clock: Clock, observer: Observer) -> None:
        self._settings = settings
        self._model = model
        self._clock = clock
        self._observer = observer
        self._in_flight = 0
        self._queue: OrderedDict[asyncio.Future[Permit], None] = OrderedDict()
        self._departures: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def in_flight(self) -> int:
        """Permits that are out."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def limit(self, settings: FlowSettings) -> None:
        """Other limits from now on: where there is room by them, those who wait longest come in at once."""
        self._settings = settings
        self._admit()

    def enter_now(self) -> Permit | None:
        """A permit where there is room; None: ``enter`` waits for one."""
        if self._in_flight >= self._settings.max_in_flight:
            return None
        self._in_flight += 1
        return Permit(self)

    async def enter(self) -> Permit:
        """A permit: at once where there is room, else when it is this request's turn.

        Raises Saturated, with ``retry_after``, if the queue is full or the turn does not come within
        ``queue_timeout``. Cancellation in any phase leaves nothing behind.
        """
        if (permit := self.enter_now()) is not None:
            return permit
        if len(self._queue) >= self._settings.max_queue:
            raise Saturated(
                f"model {self._model}: {self._in_flight} requests are in flight and {len(self._queue)} are waiting",
                retry_after=self.retry_after(),
            )
        return await self._wait()

    def retry_after(self) -> float:
        """Whole seconds after which a new request may find room: those ahead of it, at the rate of late departures."""
        if len(self._departures) < 2:
            return float(min(max(SOONEST, ceil(self._settings.queue_timeout)), LATEST))
        elapsed = self._clock.monotonic() - self._departures[0]
        ahead = len(self._queue) + 1
        return float(min(max(SOONEST, ceil(ahead * elapsed / len(self._departures))), LATEST))

    async def _wait(self) -> Permit:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Permit] = loop.create_future()
        self._queue[turn] = None
        self._observer.queued(self._model, len(self._queue))
        # The deadline ends the wait through the future too: whichever comes first wins, and there is no third case in
        # which a permit was handed over while a timeout was cancelling the task.
        deadline = loop.call_later(self._settings.queue_timeout, self._too_long, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().leave()
            raise
        finally:
            deadline.cancel()
            if turn in self._queue:
                del self._queue[turn]
                self._observer.queued(self._model, len(self._queue))

    def _too_long(self, turn: asyncio.Future[Permit]) -> None:
        if not turn.done():
            turn.set_exception(
                Saturated(
                    f"model {self._model}: no room within {self._settings.queue_timeout:g} seconds of waiting",
                    retry_after=self.retry_after(),
                )
            )

    def _left(self) -> None:
        self._departures.append(self._clock.monotonic())
        self._in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._in_flight < self._settings.max_in_flight:
            turn, _ = self._queue.popitem(last=False)
            self._observer.queued(self._model, len(self._queue))
            if not turn.done():
                self._in_flight += 1
                turn.set_result(Permit(self))
