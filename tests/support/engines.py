"""Simulated engines in the test's own loop, on ports of their own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.ports import free_in_a_row


@contextlib.asynccontextmanager
async def simulated(
    settings: EngineSettings | None = None, *, where: Mapping[str, Any] | None = None, **changes: Any
) -> AsyncIterator[EngineServer]:
    """One engine with ``settings`` (the default ones) and these ``changes``. ``where``: of ``EngineServer.start``."""
    server = EngineServer(replace(settings or EngineSettings(), **changes))
    await server.start(**({"port": free_in_a_row()} | dict(where or {})))
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def each_simulated(*settings: EngineSettings) -> AsyncIterator[list[EngineServer]]:
    """An engine for each of these settings."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(simulated(one)) for one in settings]


@contextlib.asynccontextmanager
async def engines(count: int, **settings: Any) -> AsyncIterator[list[EngineServer]]:
    """``count`` engines with these settings, each with a seed of its own."""
    async with each_simulated(*(EngineSettings(seed=seed, **settings) for seed in range(count))) as servers:
        yield servers
