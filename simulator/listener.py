"""The listening socket of a simulated engine: it can be taken away and given back on the same port or path.

It accepts by itself, not by ``loop.create_server``: asyncio makes a connection some turns of the loop after it has
accepted the socket, and where its server is closed in between it forgets the socket, open, until some garbage
collection. A client on it would wait for an engine that is gone.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

from aiohttp import web

BACKLOG = 512
"""Connections that wait to be accepted: a load test opens hundreds at once."""


class Connections(web.Server):
    """aiohttp's server. While it is not ``accepting`` it closes what comes: what was under way then."""

    accepting = False

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if not self.accepting:
            transport.abort()


class Listener:
    """``open`` first; ``refuse`` and ``accept`` then switch between refused and accepted connections."""

    def __init__(self, connections: Connections, tls: ssl.SSLContext | None = None) -> None:
        """``tls``: makes the connections; None: they are plain."""
        self._connections = connections
        self._tls = tls
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] | str = ("", 0)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def port(self) -> int:
        """0 for a Unix socket."""
        return 0 if isinstance(self._address, str) else self._address[1]

    def open(self, address: tuple[str, int] | str) -> None:
        """``address``: host and port, or the path of a Unix socket. Raises OSError if it is taken."""
        self._address = address
        self._socket = self._bind()
        self.accept()

    def accept(self) -> None:
        """Take connections. Does nothing if it does so already, or if it is closed."""
        if self._connections.accepting or self._socket is None:
            return
        self._socket.listen(BACKLOG)
        self._connections.accepting = True
        asyncio.get_running_loop().add_reader(self._socket, self._take, self._socket)

    def refuse(self) -> None:
        """Refuse connections from now on. The port stays taken: bound, but not listening."""
        if self._connections.accepting:
            self.close()
            self._socket = self._bind()

    def close(self) -> None:
        if self._socket is None:
            return
        if self._connections.accepting:
            asyncio.get_running_loop().remove_reader(self._socket)
        self._connections.accepting = False
        self._socket.close()
        self._socket = None
        if isinstance(self._address, str):
            Path(self._address).unlink(missing_ok=True)

    def _take(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(BACKLOG):
            try:
                taken, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            taken.setblocking(False)
            task = loop.create_task(
                loop.connect_accepted_socket(self._connections, taken, ssl=self._tls), name="accepted"
            )
            self._tasks.add(task)
            task.add_done_callback(self._accepted)

    def _accepted(self, task: asyncio.Task[Any]) -> None:
        """A handshake may have failed: that is the client's to tell."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def _bind(self) -> socket.socket:
        if isinstance(self._address, str):
            family = socket.AF_UNIX
        else:
            family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setblocking(False)
            bound.bind(self._address)
        except OSError:
            bound.close()
            raise
        if not isinstance(self._address, str):
            self._address = (self._address[0], bound.getsockname()[1])
        return bound
