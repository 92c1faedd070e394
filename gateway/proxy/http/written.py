"""What is written to a client's connection: whether its client has room for more, and whether it takes what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway.proxy.http.write_progress import may_wait, taken_of, unwritten


class WrittenConnection(web.RequestHandler):
    """It calls back when its client has no room (``attend``), and when it has room again (``when_taken``).

    ``full``: the client has no room: the write buffer is above its high-water mark.
    """

    __slots__ = ("_full", "_gone", "_tail", "_taken", "full")

    def __init__(self, server: web.Server, **settings: Any) -> None:
        """As ``web.RequestHandler``."""
        super().__init__(server, **settings)
        self.full = False
        self._full: Callable[[], None] | None = None
        self._gone: Callable[[], None] | None = None
        self._taken: Callable[[], None] | None = None
        self._tail: asyncio.TimerHandle | None = None

    def attend(self, full: Callable[[], None] | None, gone: Callable[[], None] | None) -> None:
        """Call ``full`` each time the write buffer becomes full, and ``gone`` when the client has closed its half. The
        connection closes then, but asyncio reports that only after the write buffer has drained."""
        self._full, self._gone = full, gone

    def when_taken(self, then: Callable[[], None] | None) -> None:
        """Call ``then`` once, when the write buffer has drained."""
        self._taken = then

    def eof_received(self) -> None:
        super().eof_received()
        if self._gone is not None:
            self._gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.full = True
        if self._full is not None:
            self._full()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.full = False
        then, self._taken = self._taken, None
        if then is not None:
            then()

    def abort_if_stalled(self, idle: float) -> None:
        """The end of an answer is in the write buffer, and the client may read it as slowly as it likes: abort the
        connection only after ``idle`` seconds in which it took nothing.

        Over TLS nothing may seem to wait at the moment in which the client has made room. So it ends only where that
        is so after ``idle`` seconds in which nothing was taken.
        """
        transport = self.transport
        if transport is None or self._tail is not None:
            return
        # aiohttp sets the attribute to None when the connection is lost.
        loop, there = asyncio.get_running_loop(), transport

        def look(before: int) -> None:
            self._tail = None
            acknowledged = taken_of(there)
            if acknowledged != before and may_wait(there):
                self._tail = loop.call_later(idle, look, acknowledged)
            elif unwritten(there):
                there.abort()

        self._tail = loop.call_later(idle, look, taken_of(there))

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._tail is not None:
            self._tail.cancel()
        super().connection_lost(exc)
