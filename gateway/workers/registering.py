"""Engines that register themselves, at the parent of workers: all workers are told, and those that start later, too."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
from aiohttp import web

from gateway.proxy.admin.answers import ENDPOINT, refuse_pages
from gateway.workers.asking import Answer, Asking, NoAnswer
from gateway.workers.crew import Crew
from gateway.workers.worker import Worker

PATH = "/endpoints"


@dataclass(frozen=True, slots=True)
class Registration:
    """``body``: as asked. ``name``: by which the workers call it. ``until``: time.monotonic(); None: for ever."""

    body: Mapping[str, Any]
    name: str
    until: float | None


class Registering:
    def __init__(self, crew: Crew, asking: Asking) -> None:
        self._crew = crew
        self._asking = asking
        self._known: dict[tuple[str, str], Registration] = {}
        """By model and URL."""

    def routes(self) -> Sequence[web.RouteDef]:
        return (web.post(PATH, self._register), web.delete(ENDPOINT, self._deregister))

    async def teach(self, worker: Worker) -> None:
        """Tell a worker that serves nobody yet of all. Raises NoAnswer."""
        self._expire()
        for key, one in list(self._known.items()):
            if self._known.get(key) is not one:  # it was taken back, or has just registered again at this worker, too
                continue
            if await self._tell([worker], one) == {400}:  # its model has gone meanwhile
                self._known.pop(key, None)

    async def _tell(self, workers: Sequence[Worker], one: Registration) -> set[int]:
        """Let these have it; returns the statuses of their answers. Raises NoAnswer."""
        body = dict(one.body)
        if one.until is not None:
            if (left := one.until - time.monotonic()) < 1.0:  # the least that a worker takes; it is about to go
                return set()
            body["ttl"] = left
        answers = await self._asking.ask_all(workers, "POST", PATH, body=orjson.dumps(body))
        return {answer.status for answer in answers.values()}

    async def _register(self, http: web.Request) -> web.Response:
        """Where one worker refuses it, none has it, and all have what they had before."""
        refuse_pages(http)
        self._expire()
        raw = await http.read()
        asked_at = time.monotonic()
        workers = self._crew.alive
        answers = await self._all("POST", http.raw_path, raw)
        refusal = next((each for each in answers.values() if each.status != 200), None)
        told = next((each.json["endpoint"] for each in answers.values() if each.status == 200), None)
        if told is not None:
            key = (told["model"], told["url"])
            if refusal is None:
                body = orjson.loads(raw)
                until = None if body.get("ttl") is None else asked_at + body["ttl"]
                self._known[key] = one = Registration(body, told["name"], until)
                # Those that are asked since then: what they were taught was without it.
                if late := [worker for worker in self._crew.alive if worker not in workers]:
                    with suppress(NoAnswer):  # they have ended: their successors are taught it
                        await self._tell(late, one)
            else:
                await self._take_back(key, told["name"], [one for one, each in answers.items() if each.status == 200])
        return _passed_on(refusal or next(iter(answers.values())))

    async def _take_back(self, key: tuple[str, str], name: str, workers: Sequence[Worker]) -> None:
        """Let ``workers``, which have taken what others refused, have what they had before."""
        with suppress(NoAnswer):  # they have ended: their successors never had it
            if key in self._known:
                back = [self._known[key]]
            else:
                back = [one for one in self._known.values() if one.name == name]  # these go with the name
                await self._asking.ask_all(workers, "DELETE", f"{PATH}/{quote(name)}")
            for one in back:
                await self._tell(workers, one)

    async def _deregister(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        name = http.match_info["name"]
        for key in [key for key, one in self._known.items() if one.name == name]:
            del self._known[key]
        answers = await self._all("DELETE", http.raw_path)
        done = next((each for each in answers.values() if each.status == 200), None)
        return _passed_on(done or next(iter(answers.values())))

    def _expire(self) -> None:
        """The workers have removed those whose time is over."""
        now = time.monotonic()
        self._known = {key: one for key, one in self._known.items() if one.until is None or one.until > now}

    async def _all(self, method: str, path: str, body: bytes | None = None) -> Mapping[Worker, Answer]:
        try:
            return await self._asking.ask_all(self._crew.alive, method, path, body=body)
        except NoAnswer as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from error


def _passed_on(told: Answer) -> web.Response:
    return web.Response(status=told.status, body=told.body, headers={"Content-Type": told.content_type})
