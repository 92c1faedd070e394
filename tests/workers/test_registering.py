"""An engine that registers itself at a service of several workers is known to all of them, and to those that start
later."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, cast

import httpx
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.commands.processes import START_SECONDS
from gateway.workers.asking import Answer, Asking
from gateway.workers.crew import Crew
from gateway.workers.registering import Registering
from tests.support.engines import simulated
from tests.support.wait import until
from tests.workers.conftest import CHAT, PATH, Service, document, started


@pytest.mark.slow
async def test_all_workers_know_what_registers_itself(folder, processes):
    content = document() | {"fleet": {"scrape": {"interval": 0.05}}}
    content["models"][0]["endpoints"] = []
    async with httpx.AsyncClient(timeout=300, verify=False) as client, simulated() as engine:
        service = await started(processes, folder, content, client)
        await until(service.is_up, within=START_SECONDS)
        registered = {"url": engine.url, "name": "late", "ttl": 3600}
        told = (await service.ask("POST", "/endpoints", json=registered))["endpoint"]
        assert (told["name"], told["url"]) == ("late", engine.url)
        assert await statuses(service) == {200}
        before = service.pids()
        os.kill(before[1], signal.SIGKILL)
        await service.replaced(1, before)
        assert await statuses(service) == {200}
        refused = await client.post(f"{service.admin}/endpoints", json={"url": "http://a:1", "ttl": 0})
        assert (refused.status_code, "ttl must be" in refused.text) == (400, True)
        await service.ask("DELETE", "/endpoints/late")
        assert await statuses(service) == {503}
        gone = await client.delete(f"{service.admin}/endpoints/late")
        assert gone.status_code == 404


async def statuses(service: Service) -> set[int]:
    """Of requests on connections of their own: each may be any worker's."""
    found = set()
    for _ in range(24):
        async with httpx.AsyncClient(timeout=300, verify=False) as own:
            found.add((await own.post(f"{service.url}{PATH}", json=CHAT)).status_code)
    return found


class OneWorker:
    """``has``: what has registered itself, by URL. ``refuses``: a role."""

    def __init__(self, refuses: str = "") -> None:
        self.has: dict[str, dict[str, Any]] = {}
        self.refuses = refuses

    def answer(self, method: str, path: str, body: bytes | None) -> Answer:
        if method == "DELETE":
            name = path.rpartition("/")[2]
            self.has = {url: one for url, one in self.has.items() if one["name"] != name}
            return Answer(200, b"{}", "application/json")
        one = orjson.loads(body or b"")
        if one["role"] == self.refuses:
            return Answer(400, b'{"error": {"message": "no such role here"}}', "application/json")
        self.has[one["url"]] = one
        told = {"endpoint": {"model": "m", "url": one["url"], "name": one["name"]}}
        return Answer(200, orjson.dumps(told), "application/json")


class Team:
    """``meanwhile``: called while workers are asked."""

    def __init__(self, *workers: OneWorker) -> None:
        self.alive = list(workers)
        self.meanwhile: Callable[[], None] = lambda: None

    async def ask_all(
        self, workers: Sequence[OneWorker], method: str, path: str, *, body: bytes | None = None
    ) -> dict[OneWorker, Answer]:
        answers = {worker: worker.answer(method, path, body) for worker in workers}
        self.meanwhile()
        return answers


def registrar(team: Team) -> TestClient[web.Request, web.Application]:
    app = web.Application()
    app.add_routes(Registering(cast(Crew, team), cast(Asking, team)).routes())
    return TestClient(TestServer(app))


async def test_one_that_is_refused_leaves_what_was_there() -> None:
    all_, strict = OneWorker(), OneWorker(refuses="prefill")
    one = {"url": "http://a:1", "name": "x", "role": "both"}
    two = {"url": "http://b:1", "name": "y", "role": "both"}
    async with registrar(Team(all_, strict)) as client:
        for each in (one, two):
            assert (await client.post("/endpoints", json=each)).status == 200
        refused = [one | {"role": "prefill"}, {"url": "http://c:1", "name": "x", "role": "prefill"}]
        for each in refused:
            reply = await client.post("/endpoints", json=each)
            assert (reply.status, "no such role" in await reply.text()) == (400, True)
            assert all_.has == strict.has == {"http://a:1": one, "http://b:1": two}


async def test_a_worker_that_is_asked_from_meanwhile_on_has_it_too() -> None:
    first, late = OneWorker(), OneWorker()
    team = Team(first)

    def comes() -> None:
        team.alive = [first, late]

    team.meanwhile = comes
    one = {"url": "http://a:1", "name": "x", "role": "both"}
    async with registrar(team) as client:
        assert (await client.post("/endpoints", json=one)).status == 200
    assert late.has == first.has == {"http://a:1": one}
