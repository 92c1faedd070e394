"""Routes by which a parent asks one of its workers for what concerns all of them. They are on the worker's Unix socket
only.

A reload is in two steps: ``prepare`` makes all that is new beside what runs, and answers when the rest is a switch;
``apply`` switches, ``discard`` takes it back. ``look`` reads tenants and keys again, since another worker has written
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from aiohttp import web

from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError
from gateway.proxy.admin.answers import answer, refused

UNDECIDED = 60.0
"""Seconds that what is prepared waits for the parent's word, beyond what other workers take to prepare: the parent is
gone, or no longer knows of it."""

Agree = Callable[[], Awaitable[None]]


class WorkerRoutes:
    """``reload``: reads the wanted configuration, and awaits its argument when all is prepared; raises ConfigError.
    ``look``: reads tenants and keys again. ``patience``: seconds that what is prepared waits."""

    def __init__(
        self,
        reload: Callable[[Agree], Coroutine[Any, Any, object]],
        look: Callable[[], Awaitable[None]],
        patience: float = 300.0 + UNDECIDED,
    ) -> None:
        self._reload = reload
        self._look = look
        self._patience = patience
        self._tasks = TaskSet()
        self._reloading: asyncio.Task[object] | None = None
        self._prepared = asyncio.Event()
        self._decided: asyncio.Future[bool] | None = None

    def routes(self) -> Sequence[web.RouteDef]:
        return (
            web.post("/worker/prepare", self._prepare),
            web.post("/worker/apply", self._apply),
            web.post("/worker/discard", self._discard),
            web.post("/worker/look", self._look_again),
        )

    async def close(self) -> None:
        """Cancel a reload in progress, which then changes nothing."""
        await self._tasks.close()

    async def _prepare(self, http: web.Request) -> web.Response:
        await self._decide(False)  # of a parent that no longer asks
        self._prepared = asyncio.Event()
        self._decided = asyncio.get_running_loop().create_future()
        reloading = self._reloading = self._tasks.start(self._reload(self._agree), name="reload", awaited=True)
        waiting = self._tasks.start(self._prepared.wait(), name="prepare a reload")
        await asyncio.wait((reloading, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return answer({}) if self._prepared.is_set() else await self._outcome()

    async def _apply(self, http: web.Request) -> web.Response:
        return await self._decide(True)

    async def _discard(self, http: web.Request) -> web.Response:
        await self._decide(False)
        return answer({})

    async def _look_again(self, http: web.Request) -> web.Response:
        await self._look()
        return answer({})

    async def _agree(self) -> None:
        """Wait for the parent's word. Raises ConfigError if it is not to apply."""
        assert self._decided is not None
        self._prepared.set()
        try:
            async with asyncio.timeout(self._patience):
                apply = await self._decided
        except TimeoutError:
            apply = False
        if not apply:
            raise ConfigError("another worker cannot serve by it")

    async def _decide(self, apply: bool) -> web.Response:
        if self._reloading is None or self._decided is None:
            return refused(400, "nothing is prepared")
        if not self._decided.done():
            self._decided.set_result(apply)
        return await self._outcome()

    async def _outcome(self) -> web.Response:
        assert self._reloading is not None
        reloading = self._reloading
        try:
            done = await asyncio.shield(reloading)
        except ConfigError as error:
            return refused(400, error.message, error.param)
        finally:
            if self._reloading is reloading:
                self._reloading = self._decided = None
        return answer(done)
