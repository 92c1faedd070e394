"""A client and engines without sockets: what the gateway writes is kept, and what it reads a test says by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import orjson

from gateway.framework import Clock
from gateway.http1.connection import Connection
from gateway.http1.pool import Address, Pool
from gateway.proxy.memory import Share
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.stages import Stages
from gateway.tenants.identity import ANYONE, Caller
from tests.support.wire import length_in


class MemoryReply:
    """A ``Reply``. ``body``: what was sent; ``sends``: the same, as it was sent. ``ended``, ``was_cut``: how it ended.

    ``room``: bytes that the client takes by itself; None: all. With more it is full, until ``take``. ``idle``: seconds
    for which it may take nothing, as the gateway has said last.
    """

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], length: int | None, room: int | None) -> None:
        self.status = status
        self.headers = list(headers)
        self.length = length
        self.sends: list[bytes] = []
        self.ended = self.was_cut = False
        self.idle = 0.0
        self._room = room
        self._untaken = 0
        self._waiting = b""
        self._full: Callable[[], None] | None = None
        self._gone: Callable[[], None] | None = None
        self._watched: tuple[Callable[[], None], Callable[[], None]] | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.sends)

    @property
    def full(self) -> bool:
        return self._room is not None and self._untaken > self._room

    @property
    def attended(self) -> bool:
        """Somebody is called where it is full, or gone."""
        return self._full is not None or self._gone is not None or self._watched is not None

    # For the gateway

    def send(self, data: bytes, last: bool) -> bool:
        assert not self.ended, "nothing may follow the end"
        data, self._waiting = self._waiting + data, b""
        self.ended = last
        self._write(data)
        assert not last or self.length in (None, len(self.body)), "its length is wrong"
        return True

    def part(self, data: bytes) -> None:
        assert data, "a part is not empty"
        assert self.sends, "a part follows the first bytes"
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting += data

    def cut(self) -> None:
        self.flush()
        self.ended = self.was_cut = True

    async def taken(self, idle: float) -> None:
        if self.full:
            done = asyncio.get_running_loop().create_future()
            self.watch(idle, lambda: done.set_result(None), lambda: done.set_exception(TimeoutError()))
            try:
                await done
            finally:
                self.forget()

    def attend(self, full: Callable[[], None], gone: Callable[[], None]) -> None:
        self._full, self._gone = full, gone

    def watch(self, idle: float, taken: Callable[[], None], gone: Callable[[], None]) -> None:
        self.idle = idle
        self._watched = taken, gone

    def forget(self) -> None:
        self._full = self._gone = self._watched = None

    # For tests

    def take(self) -> None:
        """The client takes all that was sent."""
        self._untaken = 0
        watched, self._watched = self._watched, None
        if watched is not None:
            watched[0]()

    def take_nothing(self) -> None:
        """So many seconds are over in which it took nothing."""
        assert self._watched is not None, "nobody looks"
        watched, self._watched = self._watched, None
        watched[1]()

    def leave(self) -> None:
        """The client closes its half."""
        if self._gone is not None:
            self._gone()

    def flush(self) -> None:
        """The loop's turn ends: the parts that came in it are written."""
        data, self._waiting = self._waiting, b""
        self._write(data)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        was = self.full
        self.sends.append(data)
        self._untaken += len(data)
        if self.full and not was and self._full is not None:
            self._full()


class MemoryClient:
    """A ``Client`` with the JSON ``body``. ``arrives``: is waited for before it is there. ``room``: of its reply.
    ``gone``: it cannot be answered any more. ``answer``: its reply, once that has begun; ``begun`` is set then.
    ``stages``: that it has in common with other clients."""

    def __init__(
        self,
        body: dict[str, Any],
        *,
        headers: Sequence[tuple[str, str]] = (),
        room: int | None = None,
        arrives: asyncio.Event | None = None,
        stages: Stages | None = None,
        caller: Caller = ANYONE,
    ) -> None:
        self.body = orjson.dumps(body)
        self.headers = [("Content-Type", "application/json"), *headers]
        self.remote = "192.0.2.1"
        self.stages = stages or Stages()
        self.caller = caller
        self.gone = False
        self.answer: MemoryReply | None = None
        self.begun = asyncio.Event()
        self._room = room
        self._arrives = arrives

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers if known.lower() == name.lower()), "")

    async def receive(self, *, limit: int, timeout: float, share: Share) -> bytes:
        assert timeout > 0
        assert len(self.body) <= limit
        share.take(len(self.body))
        if self._arrives is not None:
            await self._arrives.wait()
        if self.gone:
            raise ClientGone
        return self.body

    def reply(self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None) -> MemoryReply:
        assert self.answer is None, "there is one answer"
        if self.gone:
            raise ClientGone
        self.answer = MemoryReply(status, headers, length, self._room)
        self.begun.set()
        return self.answer


class EngineSide:
    """The transport of one ``Connection`` to an engine, and what a test says there in the engine's place.

    ``host``: the engine's. ``requests``: what was asked, head and body. ``closed``: by the gateway. ``paused``: the
    gateway reads nothing: what is said waits.
    """

    def __init__(self, host: str, connection: Connection, asked: Callable[[EngineSide], None]) -> None:
        self.host = host
        self.requests: list[tuple[bytes, bytes]] = []
        self.closed = self.paused = False
        self._connection = connection
        self._asked = asked
        self._came = b""
        self._unread: list[bytes] = []

    @property
    def asked(self) -> Any:
        """The JSON of the last request."""
        return orjson.loads(self.requests[-1][1])

    def say(self, data: bytes) -> None:
        """The engine sends ``data``: it is read at once, as one piece."""
        if self.paused:
            self._unread.append(data)
        elif not self.closed:
            self._connection.data_received(data)

    def end(self, error: Exception | None = None) -> None:
        """The engine closes the connection, or it breaks by ``error``."""
        if not self.closed:
            self.closed = True
            self._connection.connection_lost(error)

    # asyncio.Transport

    def write(self, data: bytes) -> None:
        assert not self.closed
        self._came += data
        head, blank, body = self._came.partition(b"\r\n\r\n")
        if blank and len(body) == length_in(head):
            self._came = b""
            self.requests.append((head, body))
            self._asked(self)

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        unread, self._unread = self._unread, []
        for data in unread:
            self.say(data)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class MemoryEngines(Pool):
    """The connections to engines that are not there. ``sides``: of all that were made. ``refusing``: hosts that take
    none."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.sides: list[EngineSide] = []
        self.refusing: set[str] = set()
        self._asked: asyncio.Queue[EngineSide] = asyncio.Queue()

    async def connect(self, address: Address) -> Connection:
        if address.host in self.refusing:
            raise ConnectionRefusedError("as was told")
        connection = Connection(partial(self._free, address))
        side = EngineSide(address.host, connection, self._asked.put_nowait)
        self.sides.append(side)
        connection.connection_made(side)
        return connection

    async def request(self) -> EngineSide:
        """Where the next request has come that was not waited for yet."""
        return await self._asked.get()

    @property
    def unanswered(self) -> int:
        """Requests that have come and were not waited for."""
        return self._asked.qsize()
