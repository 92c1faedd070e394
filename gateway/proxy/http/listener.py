"""A listening socket that accepts connections for an aiohttp runner, over TLS if it has a context.

A client that does not speak TLS, or takes too long for the handshake, is disconnected before the server knows of it. An
``asyncio.Server`` keeps the context that it was started with, so a renewed certificate needs a new one. It listens on
the same socket: no client that waits to be accepted is lost, and existing connections stay as they are.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from gateway.core.tls import WatchedContext

HANDSHAKE = 10.0
"""Seconds for a handshake: many times the two round trips on any usable network. With asyncio's default of 60 a silent
connection would be held that long."""

TLS_SHUTDOWN = 30.0
"""Seconds for a client to read the rest of its last answer, some 64 KB, and to complete the TLS shutdown: asyncio's
default. With 2 a client that reads 30 KB a second would lose the end of an answer that closes its connection."""


class Listener:
    """Listens for ``runner``. ``backlog``: connections that may wait to be accepted. ``tls``: None for plain HTTP."""

    def __init__(self, runner: web.BaseRunner, *, backlog: int, tls: WatchedContext | None = None) -> None:
        self._runner = runner
        self._backlog = backlog
        self._tls = tls
        self._servers: list[asyncio.Server] = []

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port in use, which the system chose if ``port`` is 0. Raises OSError."""
        return await self._open(host=host, port=port)

    async def adopt(self, listening: socket.socket) -> int:
        """Listen on a socket that is bound already; returns its port. It is closed when this no longer listens. Raises
        OSError."""
        return await self._open(sock=listening)

    async def open_unix(self, path: str) -> None:
        """Listen on a Unix socket, in the place of one that may be there. Raises OSError."""
        await self._runner.setup()
        assert self._runner.server is not None, "the runner is set up"
        loop = asyncio.get_running_loop()
        self._servers = [await loop.create_unix_server(self._runner.server, path, backlog=self._backlog)]

    async def _open(self, **where: Any) -> int:
        await self._runner.setup()
        self._servers = [await self._serve(**where)]
        if self._tls is not None:
            self._tls.on_change = self._renew
        used: int = self._servers[0].sockets[0].getsockname()[1]
        return used

    def stop(self) -> None:
        """Stop accepting connections."""
        _close(self._servers)
        self._servers = []

    async def close(self) -> None:
        """Stop accepting, and end the existing connections."""
        self.stop()
        await self._runner.cleanup()

    async def _renew(self) -> None:
        """Accept with the current context of ``tls``. Raises OSError: then the old servers continue."""
        before = self._servers
        shared = [listening.dup() for server in before for listening in server.sockets]
        after = [await self._serve(sock=listening) for listening in shared]
        if self._servers is before:
            self._servers, after = after, before
        _close(after)  # now the old ones; or the new ones, if ``stop`` came meanwhile

    async def _serve(self, **where: Any) -> asyncio.Server:
        """``where``: ``host`` and ``port``, or ``sock``."""
        connections = self._runner.server
        assert connections is not None, "the runner is set up"
        if self._tls is not None:
            where |= {
                "ssl": self._tls.context,
                "ssl_handshake_timeout": HANDSHAKE,
                "ssl_shutdown_timeout": TLS_SHUTDOWN,
            }
        loop = asyncio.get_running_loop()
        server: asyncio.Server = await loop.create_server(connections, backlog=self._backlog, **where)
        return server


def _close(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
