"""The kept-alive connections to engines. A caller takes an idle one, or makes a new one; each comes back by itself once
its answer is complete."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from functools import partial
from typing import Protocol

from gateway.framework import Clock
from gateway.http1.connection import Connection

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: below the 5 s after which uvicorn, vLLM's server, closes its end."""

MAX_IDLE = 512
"""Idle connections that are kept of one engine: twice the requests that vLLM runs at a time by default. A burst beyond
that is seldom, and each connection is a file descriptor at both ends."""

TLS_CLOSE = 1.0
"""Seconds for a TLS connection to say that it closes: nobody waits for it."""


class Address(Protocol):
    """Where to connect. Equal addresses may share connections.

    ``socket``: the path of a Unix socket; the rest then does not matter. ``ssl``: None for plain HTTP.
    ``server_name``: for SNI, and the name that the certificate must have.
    """

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def socket(self) -> str | None: ...
    @property
    def ssl(self) -> ssl.SSLContext | None: ...
    @property
    def server_name(self) -> str | None: ...


class Pool:
    """The idle connections of each engine, the last used first: what the engine closes next is used last."""

    def __init__(self, clock: Clock) -> None:
        """``clock``: measures how long it takes to connect, since uvloop's own time has whole milliseconds only."""
        self._clock = clock
        self._idle: dict[Address, deque[Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, address: Address) -> Connection | None:
        """A kept connection that seems usable; None if there is none."""
        idle = self._idle.get(address)
        if not idle:
            return None
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE
        while idle:
            connection = idle.pop()
            transport = connection.transport
            # One that was reset in this turn of the loop hears of it in the next.
            dead = transport is None or transport.is_closing()
            if connection.usable and not dead and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def connect(self, address: Address) -> Connection:
        """A new one. Raises OSError, ssl.SSLError."""

        def make() -> Connection:
            return Connection(partial(self._free, address))

        loop = asyncio.get_running_loop()
        began = self._clock.monotonic()
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
        connection.connect_seconds = self._clock.monotonic() - began
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
        now = loop.time()
        oldest, earliest = now - KEEP_ALIVE, now
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since <= oldest or not idle[0].usable):
                idle.popleft().abort()
            if idle:
                earliest = min(earliest, idle[0].idle_since)
            else:
                del self._idle[address]
        # Several that are due soon after each other are closed together.
        due = max(earliest + KEEP_ALIVE, now + KEEP_ALIVE / 4)
        self._sweep = loop.call_at(due, self._look) if self._idle else None
