"""Listening sockets that accept connections for a server, over TLS if it has a context.

A client that does not speak TLS, or takes too long for the handshake, is disconnected before the server knows of it. An
``asyncio.Server`` keeps the context that it was started with, so a renewed certificate needs a new one. Each one
listens on a copy of the socket: no client that waits to be accepted is lost, and existing connections stay as they are.
For the same reason another process may go on with the sockets (``gateway.restart``), and only who closes the last copy
has to accept first what waits there (``finish``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gateway.core.tasks import TaskSet
from gateway.core.tls import WatchedContext
from gateway.restart.sockets import BEGINNING, accept_waiting, let_none_begin, open_sockets

log = logging.getLogger("kvgate.server")

HANDSHAKE = 10.0
"""Seconds for a handshake: many times the two round trips on any usable network. With asyncio's default of 60 a silent
connection would be held that long."""

TLS_SHUTDOWN = 30.0
"""Seconds for a client to read the rest of its last answer, some 64 KB, and to complete the TLS shutdown: asyncio's
default. With 2 a client that reads 30 KB a second would lose the end of an answer that closes its connection."""

TURN = 0.01
"""Seconds between two looks for connections that have begun before the sockets were closed to new ones."""


class Runner(Protocol):
    """What a listener serves; aiohttp's ``BaseRunner`` is one. ``server``: makes the protocol of a new connection; set
    from ``setup`` on, which may be called again. ``cleanup``: ends the connections."""

    @property
    def server(self) -> Callable[[], asyncio.Protocol] | None: ...

    async def setup(self) -> None: ...

    async def cleanup(self) -> None: ...


class Listener:
    """Listens for ``runner``. ``backlog``: connections that may wait to be accepted. ``tls``: None for plaintext.

    ``sockets``: those on which it listens, or has paused to.
    """

    def __init__(self, runner: Runner, *, backlog: int, tls: WatchedContext | None = None) -> None:
        self._runner = runner
        self._backlog = backlog
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._tasks = TaskSet()
        self.sockets: list[socket.socket] = []

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port in use, which the system chose if ``port`` is 0. Raises OSError."""
        return await self.accept(open_sockets(host, port, backlog=self._backlog))

    async def accept(self, sockets: Sequence[socket.socket]) -> int:
        """Accept on these bound sockets, which are the listener's from now on; returns their port. Raises OSError."""
        self.sockets += sockets
        await self._runner.setup()
        await self.resume()
        if self._tls is not None:
            self._tls.on_change = self._renew
        used: int = self.sockets[0].getsockname()[1]
        return used

    async def open_unix(self, path: str) -> None:
        """Accept on a Unix socket, in the place of one that may be there. Raises OSError."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._servers = [await loop.create_unix_server(self._connections, path, backlog=self._backlog)]

    async def add(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on these listening sockets, too; they are the listener's from now on. Raises OSError."""
        for one in sockets:
            if not self.sockets:  # it has stopped
                one.close()
                continue
            self.sockets.append(one)
            if self._servers:
                servers, made = self._servers, await self._serve(one.dup())
                if servers is self._servers and one in self.sockets:
                    servers.append(made)
                else:  # it was paused or renewed meanwhile
                    made.close()

    def remove(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on these no more, and close them: another process has them."""
        for one in sockets:
            if one in self.sockets:
                place = self.sockets.index(one)
                del self.sockets[place]
                if self._servers:
                    self._servers.pop(place).close()
            one.close()

    def pause(self) -> None:
        """Accept no more. Clients that connect wait in the sockets."""
        _close(self._servers)
        self._servers = []

    async def resume(self) -> None:
        """Accept again; nothing if the sockets have been closed. Raises OSError."""
        if not self._servers:
            self._servers = [await self._serve(one.dup()) for one in self.sockets]

    def stop(self) -> None:
        """Accept no more, and close the sockets. Who waits there is reset, unless another process has them, too."""
        self.pause()
        for one in self.sockets:
            one.close()
        self.sockets = []

    async def finish(self) -> None:
        """Close the sockets, which no other process has, when all connections that have begun are accepted."""
        sockets, self.sockets = self.sockets, []
        self.pause()
        try:
            filtered = [let_none_begin(one) for one in sockets]
            loop = asyncio.get_running_loop()
            end = loop.time() + (BEGINNING if any(filtered) else 0.0)
            while True:
                over = loop.time() >= end
                for one in sockets:
                    for connection in accept_waiting(one):
                        self._tasks.start(self._adopt(connection), name="serve a connection that waited")
                if over:
                    # A handshake that takes longer goes on beside what follows.
                    await self._tasks.wait(BEGINNING)
                    return
                await asyncio.sleep(TURN)
        finally:
            for one in sockets:
                one.close()

    async def close(self) -> None:
        """Stop accepting, and end the existing connections."""
        self.stop()
        await self._tasks.close()
        await self._runner.cleanup()

    async def _renew(self) -> None:
        """Accept with the current context of ``tls``. Raises OSError: then the old servers continue."""
        before = self._servers
        if not before:
            return  # ``resume`` takes the context
        copies = [one.dup() for one in self.sockets]
        after = [await self._serve(copy) for copy in copies]
        if self._servers is before:
            self._servers, after = after, before
        _close(after)  # now the old ones; or the new ones, if ``stop`` came meanwhile

    async def _serve(self, listening: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        server: asyncio.Server = await loop.create_server(
            self._connections, sock=listening, backlog=self._backlog, **self._secured()
        )
        return server

    async def _adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted by hand. A handshake that fails ends it, as it does any."""
        with contextlib.suppress(OSError):  # ssl.SSLError is one
            await asyncio.get_running_loop().connect_accepted_socket(self._connections, connection, **self._secured())

    @property
    def _connections(self) -> Callable[[], asyncio.Protocol]:
        connections = self._runner.server
        assert connections is not None, "the runner is set up"
        return connections

    def _secured(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {
            "ssl": self._tls.context,
            "ssl_handshake_timeout": HANDSHAKE,
            "ssl_shutdown_timeout": TLS_SHUTDOWN,
        }


def _close(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
