"""One connection to a server, without a task of its own: commands go out and their answers come in, in order, and what
others publish comes between them (RESP3).

redis-py connects: it knows URLs, TLS and passwords. The socket is taken from it then, and hiredis parses what comes
within the call in which the loop reads it: redis-py's own reading takes 0.1 ms of CPU a message, this 0.02 ms. What is
known of redis-py's inside is ``_transport_of``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from gateway.valkey.client import Away, Refused, connect, failures

AT_ONCE = 64
"""Messages that are taken before the loop may do something else: 1 to 3 ms of it."""

NO_MASTER = ("READONLY", "LOADING", "MASTERDOWN")
"""What a server answers that leads no more, or has not read its data yet. Another one may have its name by now."""

Answer = asyncio.Future[Any]
Heard = Callable[[bytes, bytes], None]


class Connection(asyncio.Protocol):
    """``heard``: called with a channel and what was published there. ``answered``: called when nothing is under way any
    more.

    ``ended``: done when the connection has ended, with the reason.
    """

    def __init__(self, heard: Heard, answered: Callable[[], None]) -> None:
        import hiredis

        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._heard, self._answered = heard, answered
        self._nothing = object()
        self._reader = hiredis.Reader(notEnoughData=self._nothing)
        self._garbled, self._push = hiredis.ProtocolError, hiredis.PushNotification
        self._under_way: deque[Answer] = deque()
        self._transport: asyncio.Transport | None = None
        self._opened: Any = None

    async def open(self, url: str) -> None:
        """Connect. ``leave`` is to be called after it, also where it fails. Raises what ``failures`` has, and
        ConfigError as ``connect``."""
        self._opened = connect(url, decode=False).connection_pool.make_connection()
        await self._opened.connect()
        self._transport = _transport_of(self._opened)
        self._transport.set_protocol(self)

    @property
    def is_busy(self) -> bool:
        """Whether answers are awaited."""
        return bool(self._under_way)

    def send(self, commands: Iterable[tuple[bytes, Answer]]) -> None:
        """Packed commands, each with who waits for its answer: that one gets Refused where the server refuses it, and
        Away where the connection ends first."""
        packed = []
        for command, answer in commands:
            packed.append(command)
            self._under_way.append(answer)
        if self._transport is None:
            self._fail(self.ended.result())
        else:
            self._transport.write(b"".join(packed))

    async def leave(self) -> None:
        """End it."""
        self.close("the connection was lost")
        if self._opened is not None:
            with contextlib.suppress(*failures()):
                await self._opened.disconnect(nowait=True)

    def close(self, why: str) -> None:
        """End it now, but for what redis-py keeps of it. Safe at any time."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if not self.ended.done():
            self.ended.set_result(why)
        self._fail(why)

    def _fail(self, why: str) -> None:
        while self._under_way:
            refuse(self._under_way.popleft(), Away(why))

    # called by the event loop

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._take()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.close(str(error) if error is not None and str(error) else "the server has closed the connection")

    def _take(self) -> None:
        was_busy, transport = self.is_busy, self._transport
        if transport is None:
            return
        for _ in range(AT_ONCE):
            if transport.is_closing():
                return
            try:
                reply = self._reader.gets()
            except self._garbled as error:
                self.close(f"what it sends is no answer: {error}")
                return
            if reply is self._nothing:
                transport.resume_reading()
                break
            self._take_one(reply)
        else:
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._take)
        if was_busy and not self._under_way:
            self._answered()

    def _take_one(self, reply: Any) -> None:
        if type(reply) is self._push:
            if reply[0] == b"message":
                self._heard(reply[1], reply[2])
                return
            if reply[0] != b"subscribe":  # which answers a command
                return
        answer = self._under_way.popleft() if self._under_way else None
        if isinstance(reply, Exception):
            if answer is not None:
                refuse(answer, Refused(str(reply)))
            if str(reply).startswith(NO_MASTER):
                self.close(str(reply))
        elif answer is not None and not answer.done():
            answer.set_result(reply)


def refuse(answer: Answer, why: Away) -> None:
    if not answer.done():
        answer.set_exception(why)


def _transport_of(connection: Any) -> asyncio.Transport:
    """Of a connection of redis-py that has connected and waits for nothing."""
    return cast(asyncio.Transport, connection._writer.transport)
