"""Connections at the moment in which a simulated engine stops to take them: none is left that nobody answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest

from simulator.server import EngineServer
from tests.simulator.conftest import Start

ASK = b'POST /v1/completions HTTP/1.1\r\nHost: e\r\nContent-Length: 32\r\n\r\n{"prompt": "hi", "max_tokens": 9}'

TURNS = 8
"""More than the turns of the loop from a connection that is in the kernel's queue to one that is served."""


async def dies(server: EngineServer) -> None:
    await server.kill()


async def closes(server: EngineServer) -> None:
    await server.close()


async def refuses(server: EngineServer) -> None:
    server.faults.inject("refuse")


@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize("stops", [dies, closes, refuses])
async def test_a_connection_that_is_being_accepted(
    stops: Callable[[EngineServer], Awaitable[None]], turns: int, start: Start
) -> None:
    running = await start()
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", running.server.port)) as client:
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await stops(running.server)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(30):
                await loop.sock_sendall(client, ASK)
                assert await loop.sock_recv(client, 100) == b""
