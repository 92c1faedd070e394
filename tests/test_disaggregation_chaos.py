"""Covers: gateway/proxy/serving/handover.py, gateway/proxy/upstream/legs.py.

A thousand split requests while engines die and come back, and clients leave: what was not committed is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import time
from collections import Counter

import httpx
import pytest

from gateway.config.settings import DEFAULT_PLUGINS, DEFAULT_PROFILES
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Engine
from gateway.proxy.settings import RetrySettings
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.fleet import engines_of
from tests.support.gateway import PATIENT_FLEET, running, split_config
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

REQUESTS, AT_ONCE = 1000, 64
DEATHS = 3
"""At least; as many requests more are sent as that takes."""
LEAVING = 0.1  # of the clients
PATH = "/v1/completions"
BODIES = [
    {
        "model": "sim",
        "prompt": [7, number, *(token % 200 for token in range(20 + 7 * number))],
        "max_tokens": 4,
        "stream": number % 2 == 0,
    }
    for number in range(40)
]


class Engines:
    """Engines of each role, any of which can be killed and started anew at its address."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self.servers: list[EngineServer] = []
        self.all: list[EngineServer] = []

    async def start(self, role: str, port: int = 0) -> EngineServer:
        server = EngineServer(EngineSettings(kv_role=role, handshake_timeout=0.2))
        await server.start(port=port or free_in_a_row())
        self._stack.push_async_callback(server.close)
        self.all.append(server)
        return server

    async def replace(self, place: int) -> None:
        old = self.servers[place]
        await old.kill()
        self.servers[place] = await self.start(old.settings.kv_role, old.port)


async def answers(url: str) -> list[str]:
    """What one engine says alone to each of BODIES."""
    async with httpx.AsyncClient(base_url=url, timeout=30, verify=False) as client:
        return [text(await client.post(PATH, json=body)) or "" for body in BODIES]


def text(reply: httpx.Response) -> str | None:
    """What was generated; None if it ended with an error after its beginning."""
    assert reply.status_code == 200, reply.text
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.json()["choices"][0]["text"]
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    parsed = [httpx.Response(200, text=event).json() for event in events]
    if any("error" in event for event in parsed):
        assert "error" not in parsed[0]
        return None
    return "".join(event["choices"][0]["text"] for event in parsed if event["choices"])


@pytest.mark.timeout(300)  # a thousand: 8 s of two quiet cores, and 95 s where three of it and two burners share them
@pytest.mark.slow
async def test_nothing_is_lost_that_had_not_committed():
    chance = random.Random(3)
    async with contextlib.AsyncExitStack() as stack:
        engines = Engines(stack)
        engines.servers = [
            await engines.start(role) for role in ("producer", "producer", "consumer", "consumer", "consumer")
        ]
        expected = await answers(engines.servers[2].url)
        endpoints = tuple(
            EndpointSettings(url=s.url, role="prefill" if s.settings.kv_role == "producer" else "decode")
            for s in engines.servers
        )
        config = split_config(
            [],
            [],
            parameters={},
            endpoints=endpoints,
            plugins=DEFAULT_PLUGINS,
            profiles=DEFAULT_PROFILES,
            retries=RetrySettings(budget=1.0),
            fleet=PATIENT_FLEET,
        )
        gateway = await stack.enter_async_context(running(config))
        ended: Counter[str] = Counter()
        queue = itertools.takewhile(lambda number: number < REQUESTS or ended["kills"] < DEATHS, itertools.count())
        under_way: set[int] = set()
        meeting: set[int] = set()

        async def one(client: httpx.AsyncClient, number: int) -> None:
            which = number % len(BODIES)
            under_way.add(number)
            try:
                asked = client.post(PATH, json=BODIES[which])
                if chance.random() < LEAVING:
                    await asyncio.wait_for(asked, chance.uniform(0, 0.2))
                    ended["left too late"] += 1
                    return
                said = text(await asked)
                assert said in (None, expected[which]), f"request {number}: {said!r}"
                ended["broken" if said is None else "ok"] += 1
            except TimeoutError:
                ended["left"] += 1
            finally:
                under_way.discard(number)

        async def work() -> None:
            # Each its own: a pool that many share gives one idle connection to all who wait, and who comes too late
            # again and again may wait for a minute.
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, verify=False) as client:
                for number in queue:
                    await one(client, number)

        async def kill() -> None:
            """One after the other: a request that meets two deaths may be lost, and is none of this test's."""
            while True:
                place = chance.randrange(len(engines.servers))
                meeting.update(under_way)
                before = time.time()
                await engines.replace(place)
                ended["kills"] += 1
                await eventually(lambda: not meeting & under_way, "those that met the death have ended", within=60)
                meeting.clear()
                url = engines.servers[place].url
                (engine,) = (e for e in engines_of(gateway.gateway.fleet) if e.url == url)
                await eventually(functools.partial(is_back, engine, before), "the engine is back", within=60)

        loop = asyncio.get_running_loop()
        killing = loop.create_task(kill())
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        killing.cancel()
        (stopped,) = await asyncio.gather(killing, return_exceptions=True)
        assert isinstance(stopped, asyncio.CancelledError), stopped

        assert ended["kills"] >= DEATHS, ended
        assert ended["ok"] > 0.8 * (ended.total() - ended["kills"]), ended
        await eventually(gateway.idle, "every permit and reservation is given back")
        alive = [engine for engine in engines.all if not engine.died.is_set()]
        await eventually(
            lambda: sum(engine.running + engine.waiting for engine in alive) == 0,
            "no leg outlives its client",
            within=30,
        )
        outcomes = Counter(line.outcome for line in gateway.lines)
        # Who was about to leave may have been answered, or told of the break, in the same moment.
        left = ended["left"] + ended["left too late"]
        assert ended["broken"] <= outcomes["broken"] <= ended["broken"] + left
        assert set(outcomes) <= {"ok", "broken", "cancelled"}, outcomes


def is_back(engine: Engine, since: float) -> bool:
    """The gateway has seen the process that began after ``since``, and sends to it."""
    return engine.up and (engine.started or 0.0) >= since
