"""The parent's admin routes: the ones that a single process has, answered by its workers together.

What changes something goes to all of them; what asks for something that each has a part of is put together; all else
is asked of one, the lead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from aiohttp import web

from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError
from gateway.proxy.admin.answers import DRAIN, LIMIT, answer, refuse_pages, refused
from gateway.workers.asking import Answer, Asking, NoAnswer
from gateway.workers.crew import Crew
from gateway.workers.registering import Registering
from gateway.workers.worker import Worker

log = logging.getLogger("kvgate.workers")

LOOK = "/worker/look"

HOP_BY_HOP = frozenset(("connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding"))
"""Headers of the operator's own connection."""

WRITES = ("/keys", "/tenants")
"""Paths below which a change is one of tenants or keys, which each worker has read."""


class Front:
    """``reload``: reloads all workers; raises ConfigError."""

    def __init__(self, crew: Crew, asking: Asking, reload: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._crew = crew
        self._asking = asking
        self._reload = reload
        self._registering = Registering(crew, asking)
        self._tasks = TaskSet()
        self._drained: dict[str, None] = {}
        """Names that an operator drains, for workers that start later."""

    def routes(self) -> Sequence[web.RouteDef]:
        return (
            web.post("/reload", self._reload_all),
            web.get("/endpoints", self._endpoints),
            web.post(DRAIN, self._drain),
            web.delete(DRAIN, self._drain),
            *self._registering.routes(),
            web.get("/debug/decisions", self._decisions),
            web.route("*", "/{path:.*}", self._one),
        )

    async def close(self) -> None:
        await self._tasks.close()

    async def teach(self, worker: Worker) -> None:
        """Tell a worker that serves nobody yet what has registered itself and what operators have drained. Raises
        NoAnswer."""
        await self._registering.teach(worker)
        for name in list(self._drained):
            if name not in self._drained:  # an operator has just taken it back
                continue
            told = await self._asking.ask(worker, "POST", f"/endpoints/{quote(name)}/drain")
            if told.status == 404:  # it has gone meanwhile
                self._drained.pop(name, None)

    async def _reload_all(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        # A task of its own: the reload continues if the operator disconnects.
        done = self._tasks.start(self._reloaded(), name="reload", awaited=True)
        return await asyncio.shield(done)

    async def _reloaded(self) -> web.Response:
        try:
            return answer(await self._reload())
        except ConfigError as error:
            return refused(400, error.message, error.param)

    async def _endpoints(self, http: web.Request) -> web.Response:
        return self._joined(await self._all("GET", http))

    async def _drain(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        name, draining = http.match_info["name"], http.method == "POST"
        answers = await self._all(http.method, http)
        if any(each.status == 200 for each in answers.values()):
            if draining:
                self._drained[name] = None
            else:
                self._drained.pop(name, None)
        return self._joined(answers)

    async def _decisions(self, http: web.Request) -> web.Response:
        answers = await self._all("GET", http)
        if bad := _first_refusal(answers):
            return _passed_on(bad)
        found = [
            {"worker": worker.number, **decision}
            for worker, each in answers.items()
            for decision in each.json.get("decisions", ())
        ]
        found.sort(key=lambda decision: float(decision["at"]), reverse=True)
        return answer({"decisions": found[: int(http.query.get("limit", LIMIT))]})

    async def _one(self, http: web.Request) -> web.Response:
        """One worker answers: the lead. A change of tenants or keys is then known to all before it is answered."""
        workers = self._crew.alive
        if not workers:
            raise _nobody("no worker serves")
        headers = {name: value for name, value in http.headers.items() if name.lower() not in HOP_BY_HOP}
        body = http.content.iter_any() if http.body_exists else None
        try:
            told = await self._asking.ask(workers[0], http.method, http.raw_path, headers=headers, body=body)
        except NoAnswer as error:
            raise _nobody(str(error)) from error
        writes = http.method not in ("GET", "HEAD") and http.path.startswith(WRITES)
        if writes and told.status < 300 and workers[1:]:
            try:
                await self._asking.ask_all(workers[1:], "POST", LOOK)
            except NoAnswer as error:
                log.warning("%s: its successor reads tenants and keys anew", error)
        return _passed_on(told)

    async def _all(self, method: str, http: web.Request) -> Mapping[Worker, Answer]:
        try:
            return await self._asking.ask_all(self._crew.alive, method, http.raw_path)
        except NoAnswer as error:
            raise _nobody(str(error)) from error

    def _joined(self, answers: Mapping[Worker, Answer]) -> web.Response:
        """Endpoints as all workers have them; a refusal where all refuse."""
        good = [each for each in answers.values() if each.status == 200]
        if not good:
            return _passed_on(next(iter(answers.values())))
        return answer({"endpoints": joined([each.json.get("endpoints", []) for each in good])})


def joined(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The workers' lists of endpoints as one. What runs there is what runs of all; the rest is the first one's, whose
    load has that of the others in it. An endpoint is drained when it is in all."""
    found: dict[tuple[object, bool], dict[str, Any]] = {}
    for endpoints in lists:
        for endpoint in endpoints:
            key = (endpoint["name"], endpoint["state"] == "removed")
            if (known := found.get(key)) is None:
                found[key] = dict(endpoint)
                continue
            known["running"] += endpoint["running"]
            if known["state"] == "drained":
                known["state"] = endpoint["state"]
    return list(found.values())


def _first_refusal(answers: Mapping[Worker, Answer]) -> Answer | None:
    return next((each for each in answers.values() if each.status != 200), None)


def _passed_on(told: Answer) -> web.Response:
    headers = {"Content-Type": told.content_type} if told.content_type else {}
    return web.Response(status=told.status, body=told.body, headers=headers)


def _nobody(message: str) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=f"{message}\n")
