"""Engines that are killed under load: a request that had not begun to be answered is answered by another engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.attack.crowd import Crowd, crowd
from tests.attack.engines import breaks_after_head, breaks_head, closes, failing, in_every, says_garbage, simulated
from tests.attack.gateway import Attacked, attacked
from tests.support.chat import CHAT, STREAMED
from tests.support.scripted_engine import ScriptedEngine, answers
from tests.support.wait import eventually
from tests.support.wire import Connection

SOON = {
    "scrape": {"interval": 0.2, "timeout": 10},
    "health": {"backoff": 0.005, "slow_start": 0},
}
"""Of ``fleet``: engines that were started again are used at once."""

NO_BUDGET = {"budget": 0}
"""Of ``retries``: what is saved is saved by what the gateway knows of deaths."""

BODIES = ({**CHAT, "max_tokens": 8}, {**STREAMED, "max_tokens": 8})
KILLS = 100
SIMULATORS_KILLS = 4


async def under_load(
    gateway: Attacked, clients: int, engines: int, kills: int, kill: Callable[[int], Awaitable[None]]
) -> Crowd:
    """Kill and start again, one engine after the other, each while all others are up; what became of the crowd's
    requests meanwhile."""
    result, over = Crowd(Counter()), asyncio.Event()

    async def killing() -> None:
        try:
            for number in range(kills):
                seen = result.asked
                await eventually(lambda seen=seen: result.asked >= seen + clients // 2, "load", within=60)
                met = set(result.running)
                await kill(number % engines)
                met |= result.running  # one that meets two deaths may be lost
                await eventually(lambda met=met: not met & result.running, "who met the death has ended", within=60)
                await gateway.all_usable(engines)
        finally:
            over.set()

    asking = crowd(
        gateway.url,
        requests=10**6,
        clients=clients,
        body=lambda number: BODIES[number % 2],
        until=over.is_set,
        into=result,
    )
    await asyncio.gather(asking, killing())
    return result


async def test_raw_engines_are_killed(tmp_path):
    """[killed_engine] A hundred deaths, each of which closes kept connections first and the listening socket last."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine(failing(hold=0.02))) for _ in range(3)]
        urls = [engine.url for engine in engines]
        gateway = await stack.enter_async_context(attacked(tmp_path, *urls, fleet=SOON, retries=NO_BUDGET))

        async def kill(number: int) -> None:
            killed = engines[number]
            await killed.die()
            engines[number] = await stack.enter_async_context(ScriptedEngine(failing(hold=0.02), port=killed.port))

        result = await under_load(gateway, 60, len(engines), KILLS, kill)
        assert result.asked > KILLS * 30
        assert set(result.ended) <= {"ok", "broken"}, result
        await gateway.settled()
        gateway.unharmed()


async def test_simulators_are_killed(tmp_path):
    """[killed_engine] ``kill -9`` of processes."""
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(simulated(2))
        urls = [engine.url for engine in engines]
        gateway = await stack.enter_async_context(attacked(tmp_path, *urls, fleet=SOON, retries=NO_BUDGET))

        async def kill(number: int) -> None:
            await engines[number].kill()
            await engines[number].start()

        result = await under_load(gateway, 24, len(engines), SIMULATORS_KILLS, kill)
        assert set(result.ended) <= {"ok", "broken"}, result
        await gateway.settled()
        gateway.unharmed()


@dataclass
class FailsOnce:
    """Fails no request twice: of one that two of its connections died of, one after the other, the gateway must think
    that it kills engines."""

    asked: int = 0
    failed: set[bytes] = field(default_factory=set)

    async def __call__(self, connection: Connection, head: bytes, body: bytes) -> None:
        fault = FAULTS[self.asked // 5 % len(FAULTS)] if self.asked % 5 == 4 and body not in self.failed else None
        self.asked += 1
        if fault is None:
            await answers(connection, head, body)
        else:
            self.failed.add(body)
            await fault(connection)


FAULTS = (closes, breaks_head, breaks_after_head, says_garbage)


async def test_faults_before_an_answer_is_the_clients(tmp_path):
    """[guard_before_commit] One engine of three fails one request in five before its answer has begun, each time in
    another way: no client hears of it."""

    def body(number: int) -> dict[str, Any]:
        return {**(STREAMED if number % 2 else CHAT), "seed": number}

    async with ScriptedEngine(FailsOnce()) as sick, ScriptedEngine() as first, ScriptedEngine() as second:
        urls = (sick.url, first.url, second.url)
        async with attacked(tmp_path, *urls, fleet=SOON, retries=NO_BUDGET) as gateway:
            result = await crowd(gateway.url, requests=3000, clients=100, body=body)
            assert result.ended == {"ok": 3000}
            assert sick.posts > 300, "it was asked"
            await gateway.settled()
            gateway.unharmed()


async def test_a_request_that_kills_engines_reaches_two(tmp_path):
    """[killer] The guard on the other side: over kept connections and fresh ones, it is not sent through the fleet."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine()) for _ in range(4)]
        gateway = await stack.enter_async_context(
            attacked(tmp_path, *(engine.url for engine in engines), retries={"attempts": 10, "budget": 1})
        )
        await crowd(gateway.url, requests=200, clients=40)
        before = [engine.posts for engine in engines]
        for engine in engines:
            engine.post = failing(in_every(1, closes))
        result = await crowd(gateway.url, requests=1, clients=1)
        assert result.ended == {"502": 1}
        asked = [engine.posts - was for engine, was in zip(engines, before, strict=True)]
        assert sum(times > 0 for times in asked) == 2, asked
        gateway.unharmed()
