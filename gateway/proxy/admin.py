"""The operators' listener: /metrics, whether the process lives, and what operators do. Never reachable through the
clients' one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web


class Admin:
    """``render``: gives the metrics' text and its content type. ``routes``: of others, which are served here too."""

    def __init__(
        self, render: Callable[[], Awaitable[tuple[bytes, str]]], routes: Iterable[web.AbstractRouteDef] = ()
    ) -> None:
        self._render = render
        self._routes = tuple(routes)

    def runner(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._alive)
        app.router.add_routes(self._routes)
        return web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def _metrics(self, http: web.Request) -> web.Response:
        body, content_type = await self._render()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _alive(self, http: web.Request) -> web.Response:
        return web.Response(text="ok\n")
