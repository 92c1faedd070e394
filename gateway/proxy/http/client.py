"""The client's end of a connection: all that the data path needs to know of how aiohttp writes an answer.

aiohttp reads requests and keeps the connection; of an answer it is told only how it went. An answer's bytes go to the
client's transport from here, so that a part of a stream costs one ``transport.write``. What this leans on, each with
a contract test (tests/proxy/http/test_client.py), since none of it is promised:

- ``RequestHandler.finish_response`` asks an answer for nothing but ``prepare``, ``write_eof`` and ``keep_alive``;
- it begins with the next request of a connection only after that;
- ``pause_writing``, ``resume_writing`` are told to the ``RequestHandler``, and it may be subclassed.

Parts of streams are not written where they come, but together at the end of the loop's turn (``Outbox``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from aiohttp import web

from gateway.proxy.http.write_progress import taken_of, unwritten

NO_CONTENT = 204
"""The one status of a proxied answer that has no body, and says no length."""

AT_ONCE = 64 * 1024
"""Bytes for one client that are not kept for the turn's end: as many as its transport takes before it says that it is
full, which must not be known later."""

TOGETHER = 64
"""Answers that are written to together: some two milliseconds' work, for which the first of them waits at most."""

BEGUN = web.RequestKey("begun", bool)
"""Set on a request as soon as its answer's head was written: no other answer may be written behind it."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Outbox:
    """What is to be written in this turn of the loop, to whichever client: it is written at the turn's end.

    First all that came of the engines is read, then all of it is written: the processes that it is for are woken while
    there is nothing else to do, and a client gets what came of its stream in one piece. One a loop.
    """

    def __init__(self) -> None:
        self._answers: list[ClientAnswer] = []

    def add(self, answer: ClientAnswer) -> None:
        """Call its ``flush`` at the end of this turn, or when there are ``TOGETHER``."""
        answers = self._answers
        answers.append(answer)
        if len(answers) == 1:
            asyncio.get_running_loop().call_soon(self._write)
        elif len(answers) >= TOGETHER:
            self._write()

    def _write(self) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            answer.flush()


class ClientConnection(web.RequestHandler):
    """A connection that tells when its client takes no more, and when it does again. ``outbox``: of its loop."""

    __slots__ = ("_full", "_gone", "_tail", "_taken", "outbox")

    def __init__(self, *args: Any, outbox: Outbox, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outbox = outbox
        self._full: Callable[[], None] | None = None
        self._gone: Callable[[], None] | None = None
        self._taken: Callable[[], None] | None = None
        self._tail: asyncio.TimerHandle | None = None

    def attend(self, full: Callable[[], None] | None, gone: Callable[[], None] | None) -> None:
        """Call ``full`` each time when the client has stopped to take what is written, ``gone`` when it has closed its
        half: the connection closes then, but nobody is told before all that waits has been taken."""
        self._full, self._gone = full, gone

    def when_taken(self, then: Callable[[], None] | None) -> None:
        """Call ``then`` once, when what was written has been taken."""
        self._taken = then

    def eof_received(self) -> None:
        super().eof_received()
        if self._gone is not None:
            self._gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._full is not None:
            self._full()

    def resume_writing(self) -> None:
        super().resume_writing()
        then, self._taken = self._taken, None
        if then is not None:
            then()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._tail is not None:
            self._tail.cancel()
        super().connection_lost(exc)

    def see_off(self, idle: float) -> None:
        """An answer has been written, though its end may wait for the client, which reads on for as long as it likes:
        abort the connection after ``idle`` seconds in which it took nothing."""
        transport = self.transport
        if transport is None or self._tail is not None or not unwritten(transport):
            return
        loop, there = asyncio.get_running_loop(), transport  # it is taken from us when aiohttp closes it

        def look(before: int) -> None:
            self._tail = None
            if not unwritten(there):
                return
            if (acknowledged := taken_of(there)) == before:
                there.abort()
                return
            self._tail = loop.call_later(idle, look, acknowledged)

        self._tail = loop.call_later(idle, look, taken_of(there))


class ClientAnswer(web.StreamResponse):
    """An answer that is written to the transport from here; for aiohttp it is a ``StreamResponse`` that is finished.

    ``length``: bytes of its body; None: not known, so that it is chunked, or to a client of HTTP/1.0 ends with the
    connection.
    """

    def __init__(
        self, http: web.BaseRequest, status: int, headers: Iterable[tuple[str, str]], *, length: int | None
    ) -> None:
        super().__init__(status=status)
        assert http.transport is not None
        assert isinstance(http.protocol, ClientConnection)
        self._http = http
        self._connection = http.protocol
        self._transport = http.transport
        self._chunked_body = length is None and http.version >= (1, 1)
        self._kept = http.keep_alive and (length is not None or self._chunked_body)
        self._waiting = b""
        self._watched: asyncio.TimerHandle | None = None
        self._head = self._encode(headers, length)

    # What aiohttp asks of it

    @property
    def keep_alive(self) -> bool:
        return self._kept

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None

    # What the relay does with it

    @property
    def full(self) -> bool:
        """The client has not taken what was written: nothing more should be, until it has."""
        return self._connection.writing_paused

    def attend(self, full: Callable[[], None], gone: Callable[[], None]) -> None:
        """Until ``forget``: call ``full`` each time when it has become so, and ``gone`` when the client has closed its
        half."""
        self._connection.attend(full, gone)

    def watch(self, idle: float, taken: Callable[[], None], gone: Callable[[], None]) -> None:
        """Where it is ``full``: call ``taken`` once it is not; or ``gone``, after ``idle`` seconds in which the client
        took nothing."""
        loop = asyncio.get_running_loop()

        def resumed() -> None:
            self._unwatch()
            taken()

        def look(before: int) -> None:
            acknowledged = taken_of(self._transport)
            if acknowledged != before:
                self._watched = loop.call_later(idle, look, acknowledged)
            else:
                self._unwatch()
                gone()

        self._watched = loop.call_later(idle, look, taken_of(self._transport))
        self._connection.when_taken(resumed)

    def forget(self) -> None:
        """Watch and attend no more; harmless at any time."""
        self._connection.attend(None, None)
        self._unwatch()

    async def taken(self, idle: float) -> None:
        """Wait until it is not ``full``. Raises TimeoutError after ``idle`` seconds in which nothing was taken."""
        if not self.full:
            self._connection.see_off(idle)
            return
        done = asyncio.get_running_loop().create_future()
        self.watch(idle, lambda: done.set_result(None), lambda: done.set_exception(TimeoutError()))
        try:
            await done
        finally:
            self.forget()
        self._connection.see_off(idle)

    def send(self, data: bytes, last: bool) -> None:
        """Write the next bytes of the body, with the head if they are the first. ``last``: they end it."""
        if self._chunked_body:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if last:
                data += b"0\r\n\r\n"
        if self._head:
            data, self._head = self._head + data, b""
            self._http[BEGUN] = True
        self._waiting += data
        self.flush()

    def part(self, data: bytes) -> None:
        """Write more of a body that has begun and does not end with it, at the end of the loop's turn."""
        if self._chunked_body:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if not self._waiting:
            self._connection.outbox.add(self)
        self._waiting += data
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write now what waits for the end of the turn."""
        data, self._waiting = self._waiting, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def cut(self) -> None:
        """End it visibly incomplete."""
        self._kept = False
        self.flush()
        self._transport.abort()

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._watched.cancel()
            self._watched = None
            self._connection.when_taken(None)

    def _encode(self, headers: Iterable[tuple[str, str]], length: int | None) -> bytes:
        minor = int(self._http.version >= (1, 1))
        lines = [f"HTTP/1.{minor} {self.status} {_REASONS.get(self.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if self._chunked_body:
            lines.append("transfer-encoding: chunked")
        elif length is not None and self.status != NO_CONTENT:
            lines.append(f"content-length: {length}")
        if not self._kept:
            lines.append("connection: close")
        elif minor == 0:
            lines.append("connection: keep-alive")
        lines.append(f"date: {_date()}\r\n\r\n")
        return "\r\n".join(lines).encode("latin-1")


_dated = (0, "")


def _date() -> str:
    """Now, in HTTP's form; made once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = now, formatdate(now, usegmt=True)
    return _dated[1]
