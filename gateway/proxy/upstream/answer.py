"""An engine's answer, from its head to its end.

Until it is committed it is read (``chunk``, ``read``), since it may have to be thrown away. After that it flows
(``flow``): each part goes to the sink within the call that brought it. Every failure is a ``LegFailed``.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self

from gateway.api.encoding import encoding_of
from gateway.framework import Endpoint
from gateway.http1.connection import Connection, encode_head
from gateway.proxy.memory import Memory, Share
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.deadlines import Deadlines, FirstLooks
from gateway.proxy.upstream.legs import Cause, Leg, LegFailed

MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of an unstreamed answer that are held until it is complete: 16 times the largest batch of embeddings that vLLM
gives at its defaults."""


SMALL = 64 * 1024
"""Bytes of an unstreamed answer that are not counted: most answers are no longer, and 4,096 of them hold as much as one
of the largest."""


class Sink(Protocol):
    """Receives a body, part by part, as it arrives."""

    def part(self, data: bytes) -> None:
        """More of it: not empty, and not the last. Raises nothing."""

    def end(self, data: bytes) -> None:
        """The last of it, which may be empty."""


class Answer:
    """A context manager that leaves no connection behind.

    ``status``, ``headers``: of its head, 0 and empty before; names in lower case. ``encoding``: how its body is
    compressed, empty for not at all. ``connect_seconds``: the round trip of making the connection; None if one was
    reused. ``unread``: for a connection that ended before a byte came: True if it was reset, so that the engine had not
    read the request (after a complete read the end is a FIN). None: a byte came, or the connection has not ended.
    """

    __slots__ = (
        *("_connection", "_deadlines", "_done", "_failure", "_memory", "_parts", "_share", "_sink", "_size"),
        *("_uncounted", "_waiter", "_waits", "_whole", "connect_seconds", "encoding", "endpoint", "headers"),
        *("is_event_stream", "status", "unread"),
    )

    _deadlines: Deadlines

    def __init__(self, endpoint: Endpoint, memory: Memory | None = None) -> None:
        """``memory``: the budget that counts a large body which is read whole; None: it is not counted."""
        self.endpoint = endpoint
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.is_event_stream = False
        self.encoding = ""
        self.connect_seconds: float | None = None
        self.unread: bool | None = None
        self._connection: Connection | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._whole = False
        self._memory = memory
        self._share: Share | None = None
        self._uncounted = 0
        self._waits = False  # for room: nothing is read from the engine meanwhile
        self._sink: Sink | None = None
        self._done = False
        self._failure: Exception | None = None

    # Called by the reader of the answer

    async def head(
        self, leg: Leg, connection: Connection, timeouts: TimeoutSettings, first_looks: FirstLooks | None = None
    ) -> None:
        """Send ``leg``, and wait until ``status`` and ``headers`` are known. ``timeouts`` count from now on;
        ``first_looks``: as for ``Deadlines``.

        Raises LegFailed; the connection is closed then.
        """
        self._connection = connection
        self._deadlines = Deadlines(timeouts, connection, self._expired, first_looks)
        try:
            head = encode_head("POST", leg.path, leg.address.authority, leg.headers, len(leg.body))
            self.connect_seconds = None if connection.idle_since else connection.connect_seconds
            connection.send(head, leg.body, self)
            while not self.status and self._failure is None:
                await self._changed()
        except BaseException:
            self.abort()
            raise
        if not self.status:
            self._raise()
        # A 101 would tell the client to speak another protocol from here on, a 3xx send it to the engine's own address.
        if not (200 <= self.status <= 299 or 400 <= self.status <= 599):
            self.abort()
            raise LegFailed(Cause.GARBAGE, self.endpoint, f"HTTP status {self.status}")

    async def chunk(self) -> bytes:
        """What has come since, empty at the end. Raises LegFailed."""
        while not self._parts:
            if self._failure is not None:
                self._raise()
            if self._done:
                return b""
            await self._changed()
        parts, self._parts = self._parts, []
        return b"".join(parts)

    async def read(self) -> bytes:
        """All of the body, which is held until ``abort``. Raises LegFailed, also when it is longer than MAX_ANSWER, or
        there is no room for it."""
        self._whole = True
        size = sum(map(len, self._parts))
        if not self._done or size > SMALL:
            self._hold(size)
            await self._ended()
        parts, self._parts = self._parts, []
        return b"".join(parts)  # of a single one it is that one

    async def flow(self, sink: Sink) -> None:
        """Give ``sink`` all that is still to come, as it comes; return at the end. Raises LegFailed."""
        parts, self._parts = self._parts, []
        if self._done:
            sink.end(b"".join(parts))
            return
        if parts:
            sink.part(b"".join(parts))
        self._sink = sink
        if self._connection is not None:  # else it has failed meanwhile
            self._connection.divert(sink.part)
        try:
            await self._ended()
        finally:
            self._sink = None  # the sink refers to this answer: a cycle would wait for the garbage collector

    def committed(self) -> None:
        """The first event came: from here on only the idle and the total timeout count."""
        self._deadlines.committed()

    def pause(self) -> None:
        """Read nothing from the engine until ``resume``: the client has no room. Harmless at any time."""
        if self._connection is not None:
            self._deadlines.pause()
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._deadlines.resume()
            self._connection.resume()

    def abort(self, failure: Exception | None = None) -> None:
        """Close the connection unless the answer is complete, which tells the engine to stop.

        ``failure``: is raised where the rest is waited for.
        """
        connection, self._connection = self._connection, None
        if self._share is not None:
            self._share.release()
        if connection is not None:
            self._deadlines.end()
            connection.abort()
        if not self._done and failure is not None:
            self._fail(failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()

    # Called by the connection

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self._deadlines.answered = True
        self.headers = decoded = []
        for raw_name, raw_value in headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            decoded.append((name, value))
            if name == "content-type":
                self.is_event_stream = "text/event-stream" in value.lower()
            elif name == "content-encoding":
                self.encoding = encoding_of(decoded)
        self._wake()

    def part(self, data: bytes) -> None:
        """More of the body: not empty, and not the last."""
        self._parts.append(data)
        if not self._whole:
            self._wake()
            return
        self._hold(len(data))

    def end(self, data: bytes) -> None:
        """The last of the body, which may be empty. The connection is free for another request."""
        self._connection = None
        self._deadlines.end()
        if self._sink is not None:
            try:
                self._sink.end(data)
            except Exception as error:
                self._failure = error
        elif data:
            self._parts.append(data)
            if self._whole and self._memory is not None and (self._share is not None or len(data) > SMALL):
                self._held(self._memory).keep(len(data))
        self._done = True
        self._wake()

    def lost(self, error: Exception | None, *, wordless: bool) -> None:
        """The connection ended before the answer did. ``wordless``: before its first byte."""
        if wordless:
            self.unread = isinstance(error, ConnectionResetError | BrokenPipeError)
        detail = "the engine closed the connection" if error is None else f"{type(error).__name__}: {error}"
        self._broke(Cause.DIED, detail)

    def garbled(self, detail: str) -> None:
        """What came is no answer."""
        self._broke(Cause.GARBAGE, detail)

    # Internal

    def _broke(self, cause: Cause, detail: str) -> None:
        """It ends here; its connection is closed already."""
        self._connection = None
        self._deadlines.end()
        self._fail(LegFailed(cause, self.endpoint, detail))

    def _hold(self, size: int) -> None:
        """``size`` bytes more are held. If there is no room, nothing is read from the engine until there is."""
        self._size += size
        self._uncounted += size
        if self._size > MAX_ANSWER:
            self.abort(LegFailed(Cause.GARBAGE, self.endpoint, f"an unstreamed answer of over {MAX_ANSWER} bytes"))
        elif self._size > SMALL and self._memory is not None and not self._waits:
            wanted, self._uncounted = self._uncounted, 0
            self._waits = True
            if self._held(self._memory).grow(wanted, self._told):
                self._waits = False
            elif self._waits:
                self.pause()

    def _held(self, memory: Memory) -> Share:
        """Its share, which is made when it is first needed."""
        if self._share is None:
            self._share = Share(memory)
        return self._share

    def _told(self, granted: bool) -> None:
        self._waits = False
        if not granted:
            self.abort(LegFailed(Cause.FULL, self.endpoint, "there was no room for its answer"))
            return
        if self._uncounted:
            self._hold(0)
        if not self._waits:
            self.resume()

    async def _ended(self) -> None:
        """Wait until it is complete. Raises what ended it otherwise."""
        while not self._done and self._failure is None:
            await self._changed()
        if self._failure is not None:
            self._raise()

    def _changed(self) -> asyncio.Future[None]:
        """A future that is done once something has changed."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        self._wake()

    def _expired(self, cause: Cause) -> None:
        failure = LegFailed(cause, self.endpoint, str(cause))
        failure.waited = self._deadlines.waited(cause)
        self.abort(failure)

    def _raise(self) -> None:
        assert self._failure is not None
        raise self._failure
