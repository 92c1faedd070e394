"""An answer on its way to the client: its head, its framing, and the bytes for its connection's transport.

aiohttp writes nothing of it, so that a part of a stream costs one ``transport.write``. Parts of streams are not written
where they come, but together at the end of the loop's turn (``Outbox``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Protocol

from gateway.proxy.http.write_progress import may_wait, taken_of

NO_CONTENT = 204
"""The only status of a proxied answer that has neither a body nor a length."""

AT_ONCE = 64 * 1024
"""From this many bytes for one client on, they are written at once: it is the high-water mark of its transport, and
back-pressure must not be delayed."""

TOGETHER = 64
"""The most answers that are written together: some 2 ms of work, which is the longest wait of the first one."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Outbox:
    """Collects the writes to all clients in one iteration of the event loop, and makes them at its end.

    So all engines' sockets are read first, and all clients' sockets are written then. Clients are woken when the
    gateway has nothing else to do, and a client gets all new parts of its stream in one write. There is one ``Outbox``
    for each loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Transport, bytes] = {}

    def add(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write ``data`` to ``transport`` at the end of this turn; or now, with all that waits, if that is much."""
        waiting = self._waiting
        if transport in waiting:
            data = waiting[transport] + data
        elif not waiting:
            asyncio.get_running_loop().call_soon(self._write)
        waiting[transport] = data
        if len(data) >= AT_ONCE or len(waiting) >= TOGETHER:
            self._write()

    def take(self, transport: asyncio.Transport) -> bytes:
        """What waits for ``transport``; the caller writes it."""
        return self._waiting.pop(transport, b"")

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for transport, data in waiting.items():
            if not transport.is_closing():
                transport.write(data)


class Writable(Protocol):
    """What an answer needs of its client's connection. ``full``: the client has no room. ``secure``: it is over TLS,
    where it is not known what waits. ``outbox``: of its loop."""

    full: bool
    secure: bool
    outbox: Outbox

    def attend(self, full: Callable[[], None] | None, gone: Callable[[], None] | None) -> None:
        """Call ``full`` each time the client has no room left, and ``gone`` when it has closed its half."""

    def when_taken(self, then: Callable[[], None] | None) -> None:
        """Call ``then`` once, when the client has room again."""

    def abort_if_stalled(self, idle: float) -> None:
        """Let what is buffered go out, and abort only after ``idle`` seconds in which the client took nothing."""


class HttpReply:
    """A ``Reply`` over HTTP/1.1, or HTTP/1.0.

    ``begun``: its head was written, so that no other answer may be written behind it. ``keep_alive``: the connection
    may serve another request after it.
    """

    __slots__ = ("_chunked", "_connection", "_head", "_outbox", "_transport", "_watched", "begun", "keep_alive")

    def __init__(
        self,
        connection: Writable,
        transport: asyncio.Transport,
        status: int,
        headers: Iterable[tuple[str, str]],
        *,
        length: int | None,
        minor: int = 1,
        keep_alive: bool = True,
    ) -> None:
        """``length``: bytes of its body; None: not known, so that it is chunked, or to a client of HTTP/1.0 ends with
        the connection. ``minor``: of the client's HTTP version."""
        self._connection = connection
        self._outbox = connection.outbox
        self._transport = transport
        self._watched: asyncio.TimerHandle | None = None
        self._chunked = length is None and minor == 1
        self.begun = False
        self.keep_alive = keep_alive and (length is not None or self._chunked)
        lines = [f"HTTP/1.{minor} {status} {_REASONS.get(status, 'Unknown')}"]
        for name, value in headers:
            lines.append(f"{name}: {value}")
        if self._chunked:
            lines.append("transfer-encoding: chunked")
        elif length is not None and status != NO_CONTENT:
            lines.append(f"content-length: {length}")
        if not self.keep_alive:
            lines.append("connection: close")
        elif minor == 0:
            lines.append("connection: keep-alive")
        lines.append(f"date: {_date(int(time.time()))}\r\n\r\n")
        self._head = "\r\n".join(lines).encode("latin-1")

    def attend(self, full: Callable[[], None], gone: Callable[[], None]) -> None:
        """Until ``forget``: call ``full`` each time when the client has no room, and ``gone`` when it has closed its
        half."""
        self._connection.attend(full, gone)

    def watch(self, idle: float, taken: Callable[[], None], gone: Callable[[], None]) -> None:
        """Where the client has no room: call ``taken`` once it has; or ``gone``, after ``idle`` seconds in which it
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
        """End ``watch`` and ``attend``; harmless at any time."""
        self._connection.attend(None, None)
        self._unwatch()

    async def taken(self, idle: float) -> None:
        """Wait until the client has room. Raises TimeoutError after ``idle`` seconds in which it took nothing."""
        if self._connection.full:
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            def then(took: bool) -> None:
                if not done.done():  # a shutdown may have cancelled it in the same turn
                    done.set_result(took)

            self.watch(idle, lambda: then(True), lambda: then(False))
            try:
                if not await done:
                    raise TimeoutError
            finally:
                self.forget()
        if may_wait(self._transport):
            self._connection.abort_if_stalled(idle)

    def send(self, data: bytes, last: bool) -> bool:
        """As of ``Reply``: now, with the head if they are the first."""
        if self._chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if last:
                data += b"0\r\n\r\n"
        if self.begun:
            data = self._outbox.take(self._transport) + data
        else:
            self.begun = True
            data, self._head = self._head + data, b""
        transport = self._transport
        if data and not transport.is_closing():
            transport.write(data)
        return bool(transport.get_write_buffer_size()) or self._connection.secure

    def part(self, data: bytes) -> None:
        """Write a middle part of the body, neither the first nor the last, at the end of the loop's iteration."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._outbox.add(self._transport, data)

    def cut(self) -> None:
        """End the answer so that the client sees that it is incomplete."""
        self.keep_alive = False
        if (waiting := self._outbox.take(self._transport)) and not self._transport.is_closing():
            self._transport.write(waiting)
        self._transport.abort()

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._watched.cancel()
            self._watched = None
            self._connection.when_taken(None)


_date = lru_cache(maxsize=1)(partial(formatdate, usegmt=True))
"""A time in HTTP's format, by its second: computed once in each."""
