"""Simulated engines in the test's own loop, on ports of their own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from simulator.server import EngineServer
from simulator.settings import EngineSettings


@contextlib.asynccontextmanager
async def engines(count: int, **settings: Any) -> AsyncIterator[list[EngineServer]]:
    """``count`` engines with these settings, each with a seed of its own."""
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for seed in range(count):
            server = EngineServer(EngineSettings(seed=seed, **settings))
            await server.start()
            stack.push_async_callback(server.close)
            servers.append(server)
        yield servers
