"""Connections to engines. Behind ``send(leg) -> Answer`` nothing else sees which client library is used.

Every way in which a leg can fail leaves here as a ``LegFailed`` with its ``Cause``; cancellation closes the connection,
which is how vLLM learns to abort. Timeouts are one timer an answer, not one a chunk.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from dataclasses import replace
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import aiohttp

from gateway.framework import Endpoint
from gateway.proxy.legs import Cause, Leg, LegFailed
from gateway.proxy.settings import TimeoutSettings

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: below the 5 s after which uvicorn, vLLM's server, closes its end."""

MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of an unstreamed answer that are held until it is complete: 16 times the largest batch of embeddings that vLLM
gives at its defaults."""

MAX_SMALL = 1024 * 1024
"""Bytes of an answer to a question beside the requests: a bootstrap server's has about 100 for each worker."""

LARGE_BODY = 1024 * 1024
"""Bytes above which a body is written in pieces, so that one client's upload does not hold the loop."""

MAX_HEADER = 65536
"""Bytes of one header line of an engine's answer."""


class Upstream:
    """Sends legs. ``start`` and ``close`` own the connections."""

    def __init__(self, timeouts: TimeoutSettings) -> None:
        self._timeouts = timeouts
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._kept = self._session(force_close=False)
        self._fresh = self._session(force_close=True)

    async def close(self) -> None:
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()

    def with_timeouts(self, timeouts: TimeoutSettings) -> Upstream:
        """The same connections under other timeouts; to ``close`` them stays with who started them."""
        other = Upstream(timeouts)
        other._kept, other._fresh = self._kept, self._fresh
        return other

    async def send(self, leg: Leg) -> Answer:
        """Send ``leg`` and wait for the answer's head.

        A kept connection that turns out to have died idle is replaced once, silently: that the engine closed it says
        nothing of the request. Raises LegFailed.
        """
        assert self._kept is not None, "start() comes first"
        assert self._fresh is not None
        timeouts = self._timeouts
        if leg.head is not None or leg.total is not None:
            timeouts = replace(timeouts, head=leg.head or timeouts.head, total=leg.total or timeouts.total)
        answer = Answer(leg.endpoint, timeouts)
        try:
            await answer.open(self._kept, leg)
        except _StaleConnection:
            answer = Answer(leg.endpoint, timeouts)
            try:
                await answer.open(self._fresh, leg)
            except LegFailed as failure:
                if failure.cause is Cause.REFUSED:
                    # It was not the connection that died but the engine, perhaps of this very request.
                    raise LegFailed(Cause.DIED, leg.endpoint, failure.detail) from failure
                raise
        return answer

    async def get(self, url: str, timeout: float) -> bytes:
        """The body of a 200, of at most ``MAX_SMALL`` bytes, within ``timeout`` seconds. Raises Unreachable."""
        assert self._fresh is not None, "start() comes first"
        try:
            wire = SimpleNamespace()
            asked = self._fresh.get(url, allow_redirects=False, trace_request_ctx=wire)
            async with asyncio.timeout(timeout), asked as response:
                body = await response.content.read(MAX_SMALL + 1)
                while len(body) <= MAX_SMALL and (more := await response.content.read(MAX_SMALL)):
                    body += more
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
        if response.status != 200 or len(body) > MAX_SMALL:
            raise Unreachable(f"{url}: HTTP {response.status}, {len(body)} bytes")
        return body

    def _session(self, *, force_close: bool) -> aiohttp.ClientSession:
        reuse: dict[str, Any] = {"force_close": True} if force_close else {"keepalive_timeout": KEEP_ALIVE}
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(_connect_started)
        trace.on_connection_create_end.append(_connect_ended)
        trace.on_connection_reuseconn.append(_reused)
        trace.on_request_headers_sent.append(_sent)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, **reuse),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_connecting(self._timeouts.connect),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            trace_configs=[trace],
            max_line_size=MAX_HEADER,
            max_field_size=MAX_HEADER,
        )


class Unreachable(Exception):
    """A question to an engine beside its requests was not answered."""


class _StaleConnection(Exception):
    """A kept connection was dead when it was used."""


class Answer:
    """An engine's answer from its head on; a context manager that leaves no connection behind.

    ``connect_seconds``: the round trip of making the connection, None if one was reused.
    """

    def __init__(self, endpoint: Endpoint, timeouts: TimeoutSettings) -> None:
        self.endpoint = endpoint
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._response: aiohttp.ClientResponse | None = None
        self._lost: asyncio.Future[None] | None = None
        self._wire = SimpleNamespace(connect_started=0.0, connect_seconds=None, reused=False, sent=False)
        self._patience = _Patience(timeouts, self._give_up)
        self._connecting = _connecting(timeouts.connect)

    @property
    def connect_seconds(self) -> float | None:
        seconds: float | None = self._wire.connect_seconds
        return seconds

    @property
    def is_event_stream(self) -> bool:
        return any(n.lower() == "content-type" and "text/event-stream" in v.lower() for n, v in self.headers)

    async def open(self, session: aiohttp.ClientSession, leg: Leg) -> None:
        """Send, and wait for the head. Raises LegFailed, and _StaleConnection for upstream's own use."""
        self._patience.begin()
        try:
            async with asyncio.timeout(self._patience.head):
                response = await session.post(
                    leg.endpoint.engine.url + leg.path,
                    data=leg.body if len(leg.body) < LARGE_BODY else io.BytesIO(leg.body),
                    headers=leg.headers,
                    allow_redirects=False,
                    timeout=self._connecting,
                    trace_request_ctx=self._wire,
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise self._failed(Cause.CONNECT_TIMEOUT, error) from error
        except TimeoutError as error:
            raise self._failed(Cause.HEAD_TIMEOUT, error) from error
        except (aiohttp.ClientConnectorError, ssl.SSLError) as error:
            raise self._failed(Cause.REFUSED, error) from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
            if self._wire.reused:
                raise _StaleConnection from error
            raise self._failed(Cause.DIED if self._wire.sent else Cause.RESET_UNSENT, error) from error
        except aiohttp.ClientError as error:
            raise self._failed(Cause.GARBAGE, error) from error
        finally:
            if self._response is None:
                self._patience.end()
        self._response = response
        self._patience.head_came()
        self._watch(response)
        self.status = response.status
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
        # A 101 would tell the client to speak another protocol from here on, a 3xx send it to the engine's own address.
        if not (200 <= self.status <= 299 or 400 <= self.status <= 599):
            self.abort()
            raise LegFailed(Cause.GARBAGE, self.endpoint, f"HTTP status {self.status}")

    async def chunk(self) -> bytes:
        """The next bytes as they came, empty at the end. Raises LegFailed."""
        assert self._response is not None
        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise self._failed(self._patience.expired or Cause.DIED, error) from error
        self._patience.progressed()
        if not data:
            if self._patience.expired is not None:
                raise self._failed(self._patience.expired, None)
            self._patience.end()
        return data

    async def read(self) -> bytes:
        """The whole body. Raises LegFailed, also when it is longer than MAX_ANSWER."""
        parts: list[bytes] = []
        size = 0
        while data := await self.chunk():
            parts.append(data)
            size += len(data)
            if size > MAX_ANSWER:
                raise LegFailed(Cause.GARBAGE, self.endpoint, f"an unstreamed answer of over {MAX_ANSWER} bytes")
        return b"".join(parts)

    def committed(self) -> None:
        """The first event came: from here on only the idle and the total timeout count."""
        self._patience.committed()

    def abort(self) -> None:
        """Close the connection unless the answer is complete, which tells the engine to stop."""
        self._patience.end()
        if self._lost is not None:
            self._lost.remove_done_callback(self._connection_lost)
        if self._response is not None:
            self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()

    def _give_up(self) -> None:
        if self._response is not None:
            self._response.close()

    def _watch(self, response: aiohttp.ClientResponse) -> None:
        """aiohttp closes a connection whose chunks are garbage without a word to who reads the body (3.14.5)."""
        protocol = None if response.connection is None else response.connection.protocol
        self._lost = None if protocol is None else protocol.closed
        if self._lost is not None:
            self._lost.remove_done_callback(_seen)  # of the connection's last use: one is enough
            self._lost.add_done_callback(_seen)
            self._lost.add_done_callback(self._connection_lost)

    def _connection_lost(self, lost: asyncio.Future[None]) -> None:
        if self._response is not None and not self._response.content.is_eof():
            self._response.close()

    def _failed(self, cause: Cause, error: BaseException | None) -> LegFailed:
        return LegFailed(cause, self.endpoint, f"{type(error).__name__}: {error}" if error else cause)


def _connecting(seconds: float) -> aiohttp.ClientTimeout:
    """To make a connection; all that follows is ``_Patience``'s."""
    return aiohttp.ClientTimeout(total=None, connect=None, sock_connect=seconds, sock_read=None)


def _seen(lost: asyncio.Future[None]) -> None:
    """Else asyncio would log that nobody asked how an idle connection ended."""
    if not lost.cancelled():
        lost.exception()


class _Patience:
    """The head, idle and total timeouts of one answer with one timer: it looks when it fires whether there was
    progress, so that a chunk costs one clock reading.

    ``head`` stays in force after the head of a stream until ``committed``: comments before the first event are no
    answer. ``expired`` names the timeout that ended the answer.
    """

    def __init__(self, timeouts: TimeoutSettings, give_up: Any) -> None:
        self._timeouts = timeouts
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._progress = 0.0
        self._committed = False
        self.expired: Cause | None = None

    @property
    def head(self) -> float:
        return min(self._timeouts.head, self._timeouts.total)

    def begin(self) -> None:
        self._began = self._progress = self._loop.time()

    def head_came(self) -> None:
        self._progress = self._loop.time()
        self._arm()

    def progressed(self) -> None:
        self._progress = self._loop.time()

    def committed(self) -> None:
        self._committed = True

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> tuple[float, Cause]:
        """The earliest time at which patience ends if nothing happens, and which it is."""
        limits = [
            (self._began + self._timeouts.total, Cause.TOTAL_TIMEOUT),
            (self._progress + self._timeouts.idle, Cause.IDLE_TIMEOUT),
        ]
        if not self._committed:
            limits.append((self._began + self._timeouts.head, Cause.HEAD_TIMEOUT))
        return min(limits)

    def _arm(self) -> None:
        self._timer = self._loop.call_at(self._next()[0], self._look)

    def _look(self) -> None:
        at, cause = self._next()
        if at > self._loop.time():
            self._arm()
            return
        self._timer = None
        self.expired = cause
        self._give_up()


async def _connect_started(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.connect_started = asyncio.get_running_loop().time()


async def _connect_ended(session: Any, context: Any, params: Any) -> None:
    wire = context.trace_request_ctx
    wire.connect_seconds = asyncio.get_running_loop().time() - wire.connect_started


async def _reused(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.reused = True


async def _sent(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.sent = True
