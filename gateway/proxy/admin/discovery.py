"""Admin routes of what is found: engines that register themselves, and what each source tells.

An engine that registers with a ``ttl`` does so again before that is over, or it is removed. They need no key, as the
other routes of ``operations``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

import orjson
from aiohttp import web

from gateway.core.source_view import SourceView
from gateway.core.tasks import TaskSet
from gateway.discovery.registered import Registered, Registration, of_body
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings
from gateway.proxy.admin.answers import ENDPOINT, answer, refuse_pages, refused


class Found(Protocol):
    """What is found, as far as these routes need it. ``registered``: endpoints that registered themselves. ``notes``:
    what was left out or renamed, and why."""

    @property
    def registered(self) -> Registered: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def models(self) -> Collection[str]:
        """Their names, by the configuration in force."""
        ...

    def in_force(self, model: str, url: str) -> EndpointSettings | None:
        """The endpoint of ``model`` at ``url``; None: there is none."""
        ...

    def sources(self) -> Sequence[SourceView]: ...


class DiscoveryRoutes:
    """``refresh``: has the fleet follow what is found; raises ConfigError."""

    def __init__(self, found: Found, refresh: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._found = found
        self._refresh = refresh
        self._tasks = TaskSet()

    def routes(self) -> Sequence[web.RouteDef]:
        return (
            web.post("/endpoints", self._register),
            web.delete(ENDPOINT, self._deregister),
            web.get("/discovery", self._list),
        )

    async def close(self) -> None:
        await self._tasks.close()

    async def _register(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        try:
            value = of_body(orjson.loads(await http.read()))
        except orjson.JSONDecodeError as error:
            return refused(400, f"not JSON: {error.msg}")
        except ConfigError as error:
            return refused(400, error.message)
        # A task of its own: it goes on if who asks disconnects.
        done = self._tasks.start(self._registering(value), name="register an endpoint", awaited=True)
        return await asyncio.shield(done)

    async def _registering(self, value: object) -> web.Response:
        try:
            registration, before = self._found.registered.put(of_body(value), self._found.models())
        except ConfigError as error:
            return refused(400, error.message, error.param)
        if before is None or before.endpoint != registration.endpoint:
            try:
                await self._refresh()
            except ConfigError as error:
                return self._taken_back(registration, before, error.message)
        found = self._found.in_force(registration.model, registration.endpoint.url)
        if found is None:
            why = [note for note in self._found.notes if registration.endpoint.url.rstrip("/") in note]
            return self._taken_back(registration, before, "; ".join(why) or "it was taken back meanwhile")
        return answer({"endpoint": self._shown(registration)})

    async def _deregister(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        name = http.match_info["name"]
        gone = self._found.registered.remove(name)
        if not gone:
            return refused(
                404, f"No endpoint {name[:128]!r} has registered itself; GET /discovery lists those that have."
            )
        done = self._tasks.start(self._refresh(), name="deregister an endpoint", awaited=True)
        try:
            await asyncio.shield(done)
        except ConfigError as error:
            return refused(500, error.message, error.param)
        return answer({"endpoints": [self._shown(one) for one in gone]})

    async def _list(self, http: web.Request) -> web.Response:
        return answer(
            {
                "sources": [{"up": one.problem is None, **one._asdict()} for one in self._found.sources()],
                "registered": [self._shown(one) for one in self._found.registered.all()],
                "left_out": list(self._found.notes),
            }
        )

    def _taken_back(self, registration: Registration, before: Registration | None, why: str) -> web.Response:
        """What was there before is in force again, or soon where the fleet had it removed already."""
        self._found.registered.discard(registration, before)
        return refused(400, why)

    def _shown(self, one: Registration) -> dict[str, object]:
        return {
            "model": one.model,
            "name": one.name,
            "url": one.endpoint.url,
            "role": one.endpoint.role,
            "ends_in": self._found.registered.left(one),
        }
