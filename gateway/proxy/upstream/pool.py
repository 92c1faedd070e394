"""Sends legs to engines over kept-alive connections. Nothing behind ``send(leg) -> Answer`` sees a transport.

A new connection is made for the leg that needs it, and goes to the pool once its answer is complete. Cancellation
closes the connection: that is how vLLM learns to abort.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from dataclasses import replace

from gateway.core.pauses import fair_timeout
from gateway.fleet.address import Address
from gateway.proxy.memory import Memory
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.answer import Answer
from gateway.proxy.upstream.connection import Connection, encode_head
from gateway.proxy.upstream.legs import Cause, Leg, LegFailed

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: below the 5 s after which uvicorn, vLLM's server, closes its end."""

MAX_IDLE = 512
"""Idle connections that are kept of one engine: twice the requests that vLLM runs at a time by default. A burst beyond
that is seldom, and each connection is a file descriptor at both ends."""

STALE = 0.25
"""Seconds from sending on a kept connection within which its end says that it had died idle: a round trip, also across
a continent. What ends later has had the request, which may be what killed the engine."""

SAME_DEATH = 0.05
"""Seconds from making a connection to its end without a byte, right after a kept one ended so, that are one death: the
kernel closes a killed process's sockets one by one, and its listening socket completes handshakes until its turn."""

OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
"""Why a connection cannot be made that say nothing of the engine: no descriptor, no memory, no port of ours is left."""

TLS_CLOSE = 1.0
"""Seconds for a TLS connection to say that it closes: nobody waits for it."""


class Upstream:
    """Sends legs. ``close`` ends the connections that nothing is on; those under way end with their answers."""

    def __init__(self, timeouts: TimeoutSettings, pool: Pool | None = None, memory: Memory | None = None) -> None:
        """``memory``: of which answers that are read whole have their shares; None: they are not counted."""
        self._timeouts = timeouts
        self._memory = memory
        self._pool = pool or Pool()

    def close(self) -> None:
        self._pool.close()

    def with_timeouts(self, timeouts: TimeoutSettings) -> Upstream:
        """The same connections under other timeouts."""
        return Upstream(timeouts, self._pool, self._memory)

    async def send(self, leg: Leg) -> Answer:
        """Send ``leg`` and wait for the answer's head.

        A kept connection that turns out to have died idle is replaced once, silently: that the engine closed it says
        nothing of the request. Raises LegFailed.
        """
        timeouts = self._timeouts
        if leg.head is not None or leg.total is not None:
            timeouts = replace(timeouts, head=leg.head or timeouts.head, total=leg.total or timeouts.total)
        kept = self._pool.take(leg.address)
        if kept is None:
            return await self._ask(leg, self._answer(leg, timeouts), await self._connect(leg, timeouts))
        answer, began = self._answer(leg, timeouts), asyncio.get_running_loop().time()
        try:
            return await self._ask(leg, answer, kept)
        except LegFailed:
            if not answer.wordless or asyncio.get_running_loop().time() - began > STALE:
                raise
        try:
            fresh = await self._connect(leg, timeouts)
        except LegFailed as failure:
            if failure.cause is Cause.REFUSED:
                # It was not the connection that died but the engine, perhaps of this very request.
                raise LegFailed(Cause.DIED, leg.endpoint, failure.detail) from failure
            raise
        answer, made = self._answer(leg, timeouts), asyncio.get_running_loop().time()
        try:
            return await self._ask(leg, answer, fresh)
        except LegFailed as failure:
            # Who says a byte was not dead before, and who was dead then cannot have read the request now.
            later = asyncio.get_running_loop().time() - made > SAME_DEATH
            if failure.cause.killed and answer.wordless and not answer.unread and later:
                failure.deaths = 2
            raise

    def _answer(self, leg: Leg, timeouts: TimeoutSettings) -> Answer:
        return Answer(leg.endpoint, timeouts, None if self._memory is None else self._memory.share())

    async def _ask(self, leg: Leg, answer: Answer, connection: Connection) -> Answer:
        head = encode_head("POST", leg.path, leg.address.authority, leg.headers, len(leg.body))
        connection.send(head, leg.body, answer)
        answer.connect_seconds = None if connection.reused else connection.connect_seconds
        try:
            await answer.head(connection)
        except BaseException:
            answer.abort()
            raise
        return answer

    async def _connect(self, leg: Leg, timeouts: TimeoutSettings) -> Connection:
        """Raises LegFailed."""
        try:
            async with fair_timeout(timeouts.connect):
                connection = await self._pool.connect(leg.address)
        except TimeoutError as error:
            detail = f"no connection within {timeouts.connect:g} s"
            raise LegFailed(Cause.CONNECT_TIMEOUT, leg.endpoint, detail) from error
        except (OSError, ssl.SSLError) as error:
            cause = Cause.EXHAUSTED if error.errno in OURS else Cause.REFUSED
            raise LegFailed(cause, leg.endpoint, f"{type(error).__name__}: {error}") from error
        if not connection.usable:
            raise LegFailed(Cause.RESET_UNSENT, leg.endpoint, "the connection was closed as soon as it was made")
        return connection


class Pool:
    """The idle connections of each engine, the last used first: what the engine closes next is used last."""

    def __init__(self) -> None:
        self._idle: dict[Address, deque[Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, address: Address) -> Connection | None:
        """One that can be used, as far as can be told; None if there is none."""
        idle = self._idle.get(address)
        if not idle:
            return None
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def connect(self, address: Address) -> Connection:
        """A new one. Raises OSError, ssl.SSLError."""

        def make() -> Connection:
            return Connection(lambda connection: self._free(address, connection))

        loop = asyncio.get_running_loop()
        began = loop.time()
        if address.socket is not None:
            _, connection = await loop.create_unix_connection(make, address.socket)
        elif address.ssl is None:
            _, connection = await loop.create_connection(make, address.host, address.port)
        else:
            _, connection = await loop.create_connection(
                make,
                address.host,
                address.port,
                ssl=address.ssl,
                server_hostname=address.server_name,
                ssl_shutdown_timeout=TLS_CLOSE,
            )
        connection.connect_seconds = loop.time() - began
        return connection

    def close(self) -> None:
        """End what is idle, and keep no connection any more."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()

    def _free(self, address: Address, connection: Connection) -> None:
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle[address] = deque()
        if self._closed or len(idle) >= MAX_IDLE:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(KEEP_ALIVE, self._look)

    def _look(self) -> None:
        """Close what has been idle for too long, the oldest first. An engine that is gone takes its entry with it."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEP_ALIVE
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since <= oldest or not idle[0].usable):
                idle.popleft().abort()
            if not idle:
                del self._idle[address]
        self._sweep = loop.call_later(KEEP_ALIVE / 4, self._look) if self._idle else None
