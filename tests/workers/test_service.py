"""Covers: gateway/workers/service.py, gateway/workers/post.py, gateway/workers/figures.py, gateway/workers/front.py,
gateway/workers/asking.py, gateway/workers/reloads.py, gateway/proxy/admin/worker_routes.py,
gateway/tenants/limits_table.py, gateway/tenancy.py.

Whole services: a parent with two workers, as processes, in front of simulated engines. A service takes seconds to
start, so that each test tries many things with one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.commands.processes import START_SECONDS
from tests.support.engines import simulated
from tests.support.processes import ended, lines, told
from tests.support.tls import Authority
from tests.support.wait import eventually
from tests.workers.conftest import CHAT, PATH, Service, document, gone, started

NUMBERS = itertools.count()
LIMIT = 20
"""Requests per minute of a tenant."""


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=60, verify=False) as client:  # on a busy machine, and no certificates to load
        yield client


@contextlib.contextmanager
def manager(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """A service manager; what it yields gives what it has been told since the start."""
    found: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.setblocking(False)
        listening.bind(str(folder / "notify"))

        def said() -> list[str]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(listening.recv(4096).decode())
            return found

        yield said


async def of_both(service: Service, **how) -> dict[int, str]:
    """A request that each worker has answered, by the worker's number: each connection is another's."""
    found: dict[int, str] = {}
    for _ in range(200):
        name = f"r{next(NUMBERS)}"
        async with httpx.AsyncClient(timeout=60, **{"verify": False} | how) as client:
            assert (await service.chat(client, name)).status_code == 200
        (decision,) = (await service.ask("GET", f"/debug/decisions?request_id={name}"))["decisions"]
        found.setdefault(decision["worker"], name)
        if len(found) == 2:
            return found
    raise AssertionError(f"all connections came to {found}")


async def limits_are_one_set(service: Service, headers: Mapping[str, str], how: Mapping[str, Any]) -> None:
    """Both workers together let through what one would, and each tells the same of what was used."""

    async def ask() -> list[int]:
        async with httpx.AsyncClient(timeout=60, headers=headers, **how) as one:  # each connection is one worker's
            return [(await service.chat(one, max_tokens=1)).status_code for _ in range(LIMIT // 4)]

    async def used() -> int:
        async with httpx.AsyncClient(timeout=60, headers=headers, **how) as one:
            found = (await one.get(f"{service.url}/v1/usage")).json()
        return int(found["usage"]["total"]["requests"])

    began = time.monotonic()
    statuses = [status for found in await asyncio.gather(*[ask() for _ in range(12)]) for status in found]
    took = time.monotonic() - began
    passed = statuses.count(200)
    assert set(statuses) == {200, 429}
    assert LIMIT <= passed <= LIMIT + took * LIMIT / 60 + 1
    assert await asyncio.gather(*[used() for _ in range(6)]) == [passed] * 6
    assert await service.metric("kvgate_limit_refused_total") == len(statuses) - passed


async def test_operators_see_one_service(folder, processes, client):
    """Over TLS: reload, drain, decisions, explain, keys, limits and metrics are of all workers, and a stream ends in
    peace."""
    authority = Authority(folder)
    certificate, key = authority.issue("listener")
    how = {"verify": authority.trusting()}
    async with simulated(step_seconds=0.01) as one, simulated(step_seconds=0.01) as two:
        content = document(one.url, tls={"certificate": certificate, "key": key})
        content["tenants"] = {"file": "tenants.yaml", "admin_token": "let-me-in-please-now", "anonymous": True}
        red = {"name": "red", "limits": {"requests_per_minute": LIMIT}}
        (folder / "tenants.yaml").write_text(json.dumps({"tenants": [red], "keys": []}))
        with manager(folder) as told_to:
            service = await started(processes, folder, content, client, NOTIFY_SOCKET=str(folder / "notify"))
            await eventually(lambda: told_to() == ["READY=1"], "the parent alone says it, once both serve")
        first = one.url.removeprefix("http://")
        by_worker = await of_both(service, **how)

        # Decisions of both, the newest first.
        decisions = (await service.ask("GET", "/debug/decisions?limit=1000"))["decisions"]
        assert {each["request_id"] for each in decisions} >= set(by_worker.values())
        assert [each["at"] for each in decisions] == sorted((each["at"] for each in decisions), reverse=True)
        assert len((await service.ask("GET", "/debug/decisions?limit=1"))["decisions"]) == 1
        assert (await client.get(f"{service.admin}/debug/decisions?limit=x")).status_code == 400
        assert await service.metric("kvgate_requests_total") == len(decisions)
        assert await service.metric("kvgate_worker_up") == 2

        # An explanation is one worker's.
        explained = await service.ask("POST", "/debug/explain", json=CHAT)
        assert explained["plan"]["decode"] == first
        assert (await client.post(f"{service.admin}/debug/explain", json={})).status_code == 400
        assert (await client.get(f"{service.admin}/nothing")).status_code == 404
        assert (await client.get(f"{service.admin}/livez")).text == "ok\n"

        # A drain is of all; so is what ends it.
        drained = await service.ask("POST", f"/endpoints/{first}/drain")
        assert [each["state"] for each in drained["endpoints"]] == ["drained"]
        for _ in range(6):
            async with httpx.AsyncClient(timeout=60, **how) as other:
                assert (await service.chat(other)).status_code == 503
        unknown = await client.post(f"{service.admin}/endpoints/nobody/drain")
        assert (unknown.status_code, "nobody" in unknown.json()["error"]["message"]) == (404, True)

        # A worker that starts now drains it, too, and has the configuration in force, not what the file has become.
        content["models"][0]["endpoints"].append({"url": two.url})
        service.config.write_text(json.dumps(content))
        before = service.pids()
        os.kill(before[1], signal.SIGKILL)
        await service.replaced(1, before)
        for _ in range(6):
            async with httpx.AsyncClient(timeout=60, **how) as other:
                assert (await service.chat(other)).status_code == 503
        assert len((await service.ask("GET", "/endpoints"))["endpoints"]) == 1

        # A reload is of all. One that a worker cannot follow changes nothing in any.
        (folder / "wrong").mkdir()
        wrong = {**content, "models": [{**content["models"][0], "tokenizer": "wrong"}]}
        service.config.write_text(json.dumps(wrong))
        refused = await client.post(f"{service.admin}/reload")
        assert (refused.status_code, "tokenizer" in refused.json()["error"]["message"]) == (400, True)
        service.config.write_text("[")
        assert (await client.post(f"{service.admin}/reload")).status_code == 400
        assert len((await service.ask("GET", "/endpoints"))["endpoints"]) == 1
        service.config.write_text(json.dumps(content))
        assert (await service.ask("POST", "/reload"))["changes"] == [f"models[sim].endpoints[{two.url}] added"]
        assert len((await service.ask("GET", "/endpoints"))["endpoints"]) == 2
        await of_both(service, **how)
        await service.ask("DELETE", f"/endpoints/{first}/drain")
        process = service.process
        process.child.send_signal(signal.SIGHUP)
        await told(process, "reloaded: (0) changes, in all workers")

        # A key that one worker writes is known to all at once.
        token = {"Authorization": "Bearer let-me-in-please-now"}
        made = await client.post(f"{service.admin}/keys", json={"id": "ci", "tenant": "red"}, headers=token)
        assert made.status_code == 201, made.text
        for _ in range(6):
            async with httpx.AsyncClient(timeout=60, **how) as other:
                usage = await other.get(f"{service.url}/v1/usage", headers={"x-api-key": made.json()["key"]})
            assert usage.status_code == 200, usage.text
        assert (await client.get(f"{service.admin}/keys")).status_code == 401
        await limits_are_one_set(service, {"x-api-key": made.json()["key"]}, how)

        # SIGTERM lets a running stream end, and nothing new is accepted.
        long = {**CHAT, "stream": True, "max_tokens": 60, "ignore_eos": True}
        async with httpx.AsyncClient(timeout=60, **how) as other:
            async with other.stream("POST", f"{service.url}{PATH}", json=long) as reply:
                events = reply.aiter_lines()
                await anext(events)
                process.child.terminate()
                await eventually(lambda: sum("stopping" in line for line in lines(process)) == 3)
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"{service.url}/health")
                rest = [line async for line in events]
            assert rest[-2:] == ["data: [DONE]", ""]
        assert await ended(process) == 0
        assert not any("Traceback" in line for line in lines(process)), process.log.read_text()[-6000:]
        assert {"worker=0", "worker=1"} <= {word for line in lines(process) for word in line.split()}
        assert list(folder.glob("kvgate-workers-*")) == []


@pytest.mark.slow
async def test_a_worker_that_dies_or_hangs_takes_nobody_else_along(folder, processes, client):
    async with simulated(step_seconds=0.01) as engine:
        service = await started(processes, folder, document(engine.url), client)
        names = await of_both(service)
        assert set(names) == {0, 1}
        counted = await service.metric("kvgate_requests_total")
        tokens = await service.metric("kvgate_prompt_tokens_total")
        before = service.pids()

        # The other worker goes on, and serves the dead one's clients, too, until its successor does.
        os.kill(before[0], signal.SIGKILL)
        await eventually(lambda: service.pids()[0] != before[0], within=START_SECONDS)
        os.kill(service.pids()[0], signal.SIGSTOP)  # as one that takes long to start
        clients = [httpx.AsyncClient(timeout=60, verify=False) for _ in range(16)]
        replies = await asyncio.gather(*(service.chat(each, max_tokens=20) for each in clients))
        assert {reply.status_code for reply in replies} == {200}
        await asyncio.gather(*(each.aclose() for each in clients))
        os.kill(service.pids()[0], signal.SIGCONT)
        await service.replaced(0, before)
        assert await service.metric("kvgate_requests_total") == counted + 16
        assert await service.metric("kvgate_prompt_tokens_total") > tokens
        assert await service.metric("kvgate_worker_restarts_total") == 1
        assert set(await of_both(service)) == {0, 1}

        # One that stands still is killed, and has a successor.
        os.kill(before[1], signal.SIGSTOP)
        await told(service.process, r"worker 1 .*(hangs)")
        await service.replaced(1, before)
        assert set(await of_both(service)) == {0, 1}

        # Without a parent they end, once what runs has ended.
        workers = service.pids()
        long = {**CHAT, "stream": True, "max_tokens": 30, "ignore_eos": True}
        async with client.stream("POST", f"{service.url}{PATH}", json=long) as reply:
            events = reply.aiter_lines()
            await anext(events)
            os.kill(service.process.pid, signal.SIGKILL)
            rest = [line async for line in events]
        assert rest[-2:] == ["data: [DONE]", ""]
        await gone(workers)
