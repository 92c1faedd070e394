"""Admin routes of a running gateway: reload its configuration, list, drain and wake endpoints.

They need no key, since only operators can reach the admin listener. A web page in an operator's browser can send
requests there, too: these are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError
from gateway.fleet.fleet import Fleet
from gateway.fleet.waker import CannotWake
from gateway.framework import Endpoint
from gateway.proxy.admin.answers import DRAIN, WAKE, answer, refuse_pages, refused
from gateway.proxy.admin.discovery import DiscoveryRoutes

WAITING = 2
"""The most reloads by signal at a time: one that runs, and one that reads changes made since the first began."""


class Operations:
    """``reload``: returns its changes as a value that can be encoded as JSON; raises ConfigError. ``registering``: the
    routes of endpoints that register themselves."""

    def __init__(self, fleet: Fleet, reload: Callable[[], Awaitable[object]], registering: DiscoveryRoutes) -> None:
        self._fleet = fleet
        self._reload = reload
        self._registering = registering
        self._tasks = TaskSet()
        self._signals = 0

    def routes(self) -> Sequence[web.RouteDef]:
        return (
            web.post("/reload", self._asked),
            web.get("/endpoints", self._list),
            web.post(DRAIN, self._drain),
            web.delete(DRAIN, self._restore),
            web.post(WAKE, self._wake),
            *self._registering.routes(),  # after those of drains, whose paths begin with theirs
        )

    def hang_up(self) -> None:
        """SIGHUP came."""
        if self._signals < WAITING:
            self._signals += 1
            self._tasks.start(self._by_signal(), name="reload")

    async def close(self) -> None:
        """Cancel a reload in progress, which then changes nothing."""
        await self._registering.close()
        await self._tasks.close()

    async def _by_signal(self) -> None:
        try:
            with suppress(ConfigError):  # it is logged already
                await self._reload()
        finally:
            self._signals -= 1

    async def _asked(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        # A task of its own: the reload continues if the client disconnects.
        done = self._tasks.start(self._answer(), name="reload", awaited=True)
        return await asyncio.shield(done)

    async def _answer(self) -> web.Response:
        try:
            return answer(await self._reload())
        except ConfigError as error:
            return refused(400, error.message, error.param)

    async def _list(self, http: web.Request) -> web.Response:
        return answer({"endpoints": [self._shown(endpoint) for endpoint in self._fleet.all_endpoints]})

    async def _drain(self, http: web.Request) -> web.Response:
        return self._changed(http, self._fleet.drain)

    async def _restore(self, http: web.Request) -> web.Response:
        return self._changed(http, self._fleet.restore)

    async def _wake(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        name = http.match_info["name"]
        try:
            engine = await self._fleet.waker.wake(name)
        except KeyError:
            return _unknown(name)
        except CannotWake as error:
            return refused(409, f"Engine of {name!r} was not woken: {error}.")
        return answer({"endpoints": [self._shown(endpoint) for endpoint in engine.endpoints]})

    def _changed(self, http: web.Request, change: Callable[[str], Sequence[Endpoint]]) -> web.Response:
        refuse_pages(http)
        name = http.match_info["name"]
        try:
            meant = change(name)
        except KeyError:
            return _unknown(name)
        return answer({"endpoints": [self._shown(endpoint) for endpoint in meant]})

    def _shown(self, endpoint: Endpoint) -> dict[str, Any]:
        drain, metrics = self._fleet.drain_state(endpoint), endpoint.metrics
        prefill_tokens, kv_tokens = endpoint.load.own_tokens
        if drain.gone:
            state = "removed"
        elif drain.coming:
            state = "coming"
        elif endpoint.draining:
            state = "draining" if drain.running else "drained"
        else:
            state = "spared" if endpoint.engine.spared else "up" if endpoint.engine.up else "down"
        return {
            "name": endpoint.name,
            "model": endpoint.model.name,
            "engine": endpoint.engine.name,
            "url": endpoint.engine.url,
            "rank": endpoint.rank,
            "role": endpoint.role,
            "state": state,
            "up": endpoint.engine.up,
            "down_reason": endpoint.engine.down_reason,
            "drained_by": [who for who, so in (("file", drain.by_file), ("operator", drain.by_operator)) if so],
            "running": drain.running,
            "prefill_tokens": prefill_tokens,
            "kv_tokens": kv_tokens,
            "engine_running": metrics.running,
            "engine_waiting": metrics.waiting,
        }


def _unknown(name: str) -> web.Response:
    return refused(404, f"There is no endpoint or engine {name[:128]!r}; GET /endpoints lists what there is.")
