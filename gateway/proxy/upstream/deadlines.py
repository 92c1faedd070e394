"""Head, idle and total timeouts of one answer, on one timer at a time.

When the timer fires it asks the connection when bytes last arrived, so a chunk costs one clock reading. A timer that
fires late, because this process was stopped or held up, checks once more: bytes that arrived meanwhile are read from
the sockets first.

Nearly all answers end before their first look is due. So for that one they have a timer of the loop in common
(``FirstLooks``): a timer for each answer would cost more than all else here. A longer answer then gets one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.core.pauses import LATE, TURN
from gateway.http1.connection import Connection
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.legs import Cause

Expired = Callable[[Cause], None]


def first_look(timeouts: TimeoutSettings) -> float:
    """Seconds after which the first of ``timeouts`` may end an answer."""
    return min(timeouts.head, timeouts.total, timeouts.idle)


class FirstLooks:
    """Looks once at each answer that still lasts ``span`` seconds after it began.

    All wait equally long, so that they are due in the order in which they came: one timer is enough, for the first of
    them. It is left to run out where none waits any more.

    ``waiting``: with the ``loop.time()`` of when each began. Who ends takes itself out. ``runs``: the timer does; who
    comes and finds that it does not calls ``run``.
    """

    def __init__(self, span: float) -> None:
        self.waiting: dict[Deadlines, tuple[float, Expired]] = {}
        self.runs = False
        self._span = span

    def run(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        """``began``: when the first one that waits did."""
        self.runs = True
        loop.call_at(began + self._span, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.runs = False
        while self.waiting:
            deadlines, (began, expired) = next(iter(self.waiting.items()))
            if (due := began + self._span) > loop.time():
                self.run(loop, began)
                return
            del self.waiting[deadlines]
            deadlines.look(expired, due)


class Deadlines:
    """Calls back at most once, with the timeout that ended the answer.

    The head timeout counts until ``committed``, since comments before a stream's first event are no answer. The idle
    timeout counts after that, since a long prefill is not idle. ``answered``: the head came.
    """

    __slots__ = (
        *("_began", "_committed", "_connection", "_first_looks", "_idle_from", "_loop", "_paused", "_timeouts"),
        *("_timer", "answered"),
    )

    def __init__(
        self, timeouts: TimeoutSettings, connection: Connection, expired: Expired, first_looks: FirstLooks | None
    ) -> None:
        """They count from now on. ``connection``: brings the answer. ``expired``: is called at most once. Only a timer
        refers to it, so that an answer that has ended is no reference cycle. ``first_looks``: of these ``timeouts``;
        None: they are this answer's alone."""
        self._timeouts = timeouts
        self._loop = loop = asyncio.get_running_loop()
        self._connection: Connection | None = connection
        self._began = self._idle_from = now = loop.time()  # the latter unless bytes arrived later
        self.answered = False
        self._committed = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._first_looks = first_looks
        if first_looks is None:
            due = now + first_look(timeouts)
            self._timer = loop.call_at(due, self.look, expired, due)
        else:
            first_looks.waiting[self] = now, expired
            if not first_looks.runs:
                first_looks.run(loop, now)

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
        elif self._first_looks is not None:
            self._first_looks.waiting.pop(self, None)

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

    def look(self, expired: Expired, due: float) -> None:
        """A look that was due at ``due``: say that the answer has ``expired``, or look again later."""
        now = self._loop.time()
        at, cause = self._next()
        if at > now:
            # At most ``idle`` from now, since the idle timeout may apply by then.
            due = min(at, now + self._timeouts.idle)
            self._timer = self._loop.call_at(due, self.look, expired, due)
            return
        if now - due > LATE:
            self._timer = self._loop.call_at(now + TURN, self.look, expired, inf)
            return
        self._timer = None
        expired(cause)
