"""The floor: two uvloop transports for each client, joined. No HTTP is read, so nothing could be routed by it.

``python -m ...floor PORT URL...``: each connection goes to the next engine, and stays there.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import cycle
from typing import cast
from urllib.parse import urlsplit

import uvloop


class End(asyncio.Protocol):
    """One side of a connection: what it receives goes to ``other``; until there is one it is kept."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def join(self, other: asyncio.Transport) -> None:
        self.other = other
        for data in self._early:
            other.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class Front(End):
    """The client's side, which makes the engine's."""

    def __init__(self, engines: cycle[tuple[str, int]], tasks: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._engines = engines
        self._tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        task = asyncio.get_running_loop().create_task(self._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        assert self.transport is not None
        host, port = next(self._engines)
        _, back = await asyncio.get_running_loop().create_connection(End, host, port)
        assert back.transport is not None
        back.join(self.transport)
        self.join(back.transport)


async def serve(port: int, urls: list[str]) -> None:
    engines = cycle([(str(parts.hostname), int(parts.port or 80)) for parts in map(urlsplit, urls)])
    tasks: set[asyncio.Task[None]] = set()
    await asyncio.get_running_loop().create_server(lambda: Front(engines, tasks), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
