"""The small HTTP server of a producer where the other side finds it: Mooncake's and SGLang's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ATTEMPTS = 3
RETRY_SECONDS = 0.1
"""How often, and how far apart, a bootstrap server is asked that does not answer (vLLM's Mooncake)."""


class Bootstrap:
    """Its routes are GETs by path. ``address`` is host:port once it listens."""

    def __init__(self, routes: Mapping[str, Handler]) -> None:
        self.address: str | None = None
        self._routes = routes
        self._runner: web.AppRunner | None = None

    async def open(self, host: str, port: int) -> None:
        """Raises OSError if the port is taken."""
        app = web.Application()
        app.add_routes([web.get(path, handler) for path, handler in self._routes.items()])
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.address = f"{host}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def ask(url: str, timeout: float, attempts: int = ATTEMPTS) -> bytes:
    """The body of what a bootstrap server answers. Raises aiohttp.ClientError, TimeoutError, ValueError (no URL)."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout)) as session:
        for _ in range(attempts - 1):
            with contextlib.suppress(aiohttp.ClientConnectionError):
                return await _get(session, url)
            await asyncio.sleep(RETRY_SECONDS)
        return await _get(session, url)


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as answer:
        answer.raise_for_status()
        return await answer.read()
