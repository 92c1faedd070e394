"""The listening socket of a simulated engine: it can be taken away and given back on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

BACKLOG = 512
"""Connections that wait to be accepted: a load test opens hundreds at once."""

CLOSING_STEPS, CLOSING_SECONDS = 100, 0.01
"""How often, and how far apart, a port is tried that our own closing socket may still have."""


class Listener:
    """``open`` first; ``refuse`` and ``accept`` then switch between refused and accepted connections."""

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._factory = factory
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None
        self._address: tuple[str, int] = ("", 0)

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def refusing(self) -> bool:
        return self._server is None

    async def open(self, host: str, port: int) -> None:
        """Raises OSError if the port is taken."""
        self._address = (host, port)
        self._placeholder = self._bind()
        await self.accept()

    async def accept(self) -> None:
        """Take connections. Does nothing if it does so already. Raises OSError if somebody took the port meanwhile."""
        if self._server is not None:
            return
        for _ in range(CLOSING_STEPS):
            if self._reserve():
                break
            await asyncio.sleep(CLOSING_SECONDS)
        bound = self._placeholder or self._bind()
        self._placeholder = None
        self._server = await asyncio.get_running_loop().create_server(self._factory, sock=bound, backlog=BACKLOG)

    def refuse(self) -> None:
        """Refuse connections from now on. The port stays taken: bound, but not listening."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        # uvloop closes its socket a moment later: then ``accept`` takes the port again.
        self._reserve()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None

    def _reserve(self) -> bool:
        """Keep the port without listening on it. False if the old socket still has it."""
        if self._placeholder is None:
            with contextlib.suppress(OSError):
                self._placeholder = self._bind()
        return self._placeholder is not None

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setblocking(False)
            bound.bind(self._address)
        except OSError:
            bound.close()
            raise
        self._address = (self._address[0], bound.getsockname()[1])
        return bound
