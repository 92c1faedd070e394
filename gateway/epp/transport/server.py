"""All connections of a gRPC server: what a listener serves, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.clock import SystemClock
from gateway.epp.messages import ProcessingRequest
from gateway.epp.stream import Open
from gateway.epp.transport.call import Method, Methods
from gateway.epp.transport.connection import Connection
from gateway.epp.transport.health import health
from gateway.epp.transport.limits import Limits
from gateway.epp.transport.shared import Shared
from gateway.framework import Clock

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

TURN = 0.02
"""Seconds between two looks whether calls or connections have ended."""


def methods(ready: Callable[[], bool], open_call: Open | None = None) -> Methods:
    """Of a picker; without ``open_call`` only its health, for a port of its own."""
    found = dict(health(ready))
    if open_call is not None:
        found[PROCESS] = Method(ProcessingRequest.FromString, open_call)
    return found


class Server:
    """What a ``Listener`` serves. ``connections``: those that are open."""

    def __init__(self, methods: Methods, limits: Limits | None = None, clock: Clock | None = None) -> None:
        self.connections: set[Connection] = set()
        self._shared = Shared(methods, limits or Limits(), clock or SystemClock())
        self._looking: asyncio.TimerHandle | None = None

    def server(self) -> Connection:
        """A new connection's protocol."""
        return Connection(self._shared, self.connections)

    @property
    def calls(self) -> int:
        """How many are open."""
        return sum(len(connection.calls) for connection in self.connections)

    async def setup(self) -> None:
        if self._looking is None:
            self._look()

    async def drain(self, within: float) -> None:
        """Let the calls that are open end by themselves for ``within`` seconds, and then end them, so that gateways go
        on without us. Gateways are asked at once to begin no new ones; those that come all the same are served until
        then, and ended at once after it. Stop listening before."""
        for connection in list(self.connections):
            connection.leave()
        await self._until(lambda: not self.calls, within)
        self._shared.ending = True
        for connection in list(self.connections):
            connection.end_calls()
        await self._until(lambda: not self.calls, self._shared.limits.linger)

    async def cleanup(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        for connection in list(self.connections):
            connection.close()
        await self._until(lambda: not self.connections, self._shared.limits.linger)
        for connection in list(self.connections):
            connection.abort()
        await self._until(lambda: not self.connections, self._shared.limits.linger)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self.connections):
            connection.look(loop.time())
        self._looking = loop.call_later(self._shared.limits.look, self._look)

    async def _until(self, condition: Callable[[], bool], within: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while loop.time() < end:
            if condition():
                return
            await asyncio.sleep(TURN)
