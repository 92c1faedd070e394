"""Head, idle and total timeouts of one answer, on one timer.

When the timer fires it asks the connection when bytes last arrived, so a chunk costs one clock reading. A timer that
fires late, because this process was stopped or held up, checks once more: bytes that arrived meanwhile are read from
the sockets first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.core.pauses import LATE, TURN
from gateway.http1.connection import Connection
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.legs import Cause


class Deadlines:
    """Calls back at most once, with the timeout that ended the answer.

    The head timeout counts until ``committed``, since comments before a stream's first event are no answer. The idle
    timeout counts after that, since a long prefill is not idle. ``answered``: the head came.
    """

    def __init__(self, timeouts: TimeoutSettings, connection: Connection, expired: Callable[[Cause], None]) -> None:
        """They count from now on. ``connection``: brings the answer. ``expired``: is called at most once. Only the
        timer refers to it, so that an answer that has ended is no reference cycle."""
        self._timeouts = timeouts
        self._loop = loop = asyncio.get_running_loop()
        self._connection: Connection | None = connection
        self._began = self._idle_from = now = loop.time()  # the latter unless bytes arrived later
        self.answered = False
        self._committed = False
        self._paused = False
        due = now + min(timeouts.head, timeouts.total, timeouts.idle)
        self._timer: asyncio.TimerHandle | None = loop.call_at(due, self._look, expired, due)

    def committed(self) -> None:
        self._committed = True
        self._idle_from = self._loop.time()

    def pause(self) -> None:
        """Reading from the engine is paused: the idle timeout does not count."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._idle_from = self._loop.time()

    def end(self) -> None:
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def waited(self, cause: Cause) -> float:
        """Seconds that were waited: for the idle timeout since the last bytes, else since the request was sent."""
        return self._loop.time() - (self._progress() if cause is Cause.IDLE_TIMEOUT else self._began)

    def _progress(self) -> float:
        """``loop.time()`` from which the engine has been idle."""
        arrived = 0.0 if self._connection is None else self._connection.received_at
        return max(self._idle_from, arrived)

    def _next(self) -> tuple[float, Cause]:
        """The next time at which a timeout would end the answer if nothing arrives, and which timeout it is."""
        total = self._began + self._timeouts.total, Cause.TOTAL_TIMEOUT
        if not self._committed:
            head = self._began + self._timeouts.head
            # For a leg with a single limit both are equal: then it is named after what was missing.
            return total if total[0] < head or (total[0] == head and self.answered) else (head, Cause.HEAD_TIMEOUT)
        if self._paused:
            return total
        return min(total, (self._progress() + self._timeouts.idle, Cause.IDLE_TIMEOUT))

    def _arm(self, expired: Callable[[Cause], None], now: float, at: float) -> None:
        # At most ``idle`` from now, since the idle timeout may apply by then.
        due = min(at, now + self._timeouts.idle)
        self._timer = self._loop.call_at(due, self._look, expired, due)

    def _look(self, expired: Callable[[Cause], None], due: float) -> None:
        now = self._loop.time()
        at, cause = self._next()
        if at > now:
            self._arm(expired, now, at)
            return
        if now - due > LATE:
            self._timer = self._loop.call_at(now + TURN, self._look, expired, inf)
            return
        self._timer = None
        expired(cause)
