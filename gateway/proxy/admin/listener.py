"""The operators' listener: /metrics, liveness, and the admin routes. The clients' listener serves none of these."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.core.clock import SystemClock
from gateway.core.log_limit import LogLimit, left_out

log = logging.getLogger("kvgate.admin")


class Admin:
    """``render``: returns the metrics' text and its content type. ``routes``: further routes to serve."""

    def __init__(
        self, render: Callable[[], Awaitable[tuple[bytes, str]]], routes: Iterable[web.AbstractRouteDef] = ()
    ) -> None:
        self._render = render
        self._routes = [*routes]

    def add(self, routes: Iterable[web.AbstractRouteDef]) -> None:
        """Serve these, too. Before ``runner``."""
        self._routes += routes

    def without_routes(self) -> Admin:
        """The same metrics, and nothing that an operator can do."""
        return Admin(self._render)

    def runner(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._alive)
        app.router.add_routes(self._routes)
        return web.AppRunner(
            app,
            access_log=None,
            logger=_Terse(log),
            handle_signals=False,
            shutdown_timeout=1.0,
            auto_decompress=False,  # ``receive`` decompresses bodies
        )

    async def _metrics(self, http: web.Request) -> web.Response:
        body, content_type = await self._render()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _alive(self, http: web.Request) -> web.Response:
        return web.Response(text="ok\n")


class _Terse(logging.LoggerAdapter[logging.Logger]):
    """aiohttp logs invalid HTTP as an error, with a traceback and some of the received bytes. This logs one line."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger)
        self._often = LogLimit(SystemClock())

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, HttpProcessingError):
            name = type(error).__name__
            if (count := self._often.admit(name)) is not None:
                self.logger.info("a request that is not valid HTTP was refused: %s%s", name, left_out(count))
        else:
            super().log(level, msg, *args, **kwargs)
