"""The operators' listener: /metrics, and whether the process lives. Never reachable through the clients' one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web


class Admin:
    """``render``: gives the metrics' text and its content type."""

    def __init__(self, render: Callable[[], Awaitable[tuple[bytes, str]]]) -> None:
        self._render = render

    def runner(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._alive)
        return web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def _metrics(self, http: web.Request) -> web.Response:
        body, content_type = await self._render()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _alive(self, http: web.Request) -> web.Response:
        return web.Response(text="ok\n")
