"""Covers: gateway/scheduling/prefill_decode.py, gateway/scheduling/split_cost.py.

Whether a prompt is computed on an engine of its own, decided by cost: simulated engines that are busy, or slow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.config.settings import DEFAULT_PLUGINS, DEFAULT_PROFILES
from gateway.fleet.settings import StartingCosts
from gateway.framework.fleet import EngineMetrics
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from simulator.transfer.content import BYTES_PER_TOKEN
from tests.support.engines import simulated
from tests.support.gateway import PATIENT_FLEET, Running, running, split_config
from tests.support.wait import eventually

PATH = "/v1/completions"
ANSWERS = 8
"""That the decode engine is giving meanwhile: each token that is computed beside them costs 1 + 0.1 x 8 of its time."""

BELIEVED = StartingCosts(
    prefill_token=1e-3, prefill_quadratic=0.0, step=0.02, step_request=1e-4, kv_token=1e-9, fit=False
)
"""Kept, so that no noise decides: 600 tokens stall the answers by 0.6 s, of which each counts a tenth."""


@dataclass
class Pair:
    """An engine of each role behind a gateway whose decode engine is giving answers."""

    gateway: Running
    prefill: EngineServer
    decode: EngineServer
    _answers: list[asyncio.Task[None]] = field(default_factory=list)

    async def ask(self, seed: int, tokens: int) -> str:
        """Why a prompt of its own of so many tokens was split or was not."""
        body = {"model": "sim", "prompt": prompt(seed, tokens), "max_tokens": 1}
        reply = await self.gateway.client.post(PATH, json=body, headers={"x-request-id": f"asked-{seed}"})
        assert reply.status_code == 200, reply.text
        line = next(line for line in reversed(self.gateway.lines) if line.request_id == f"asked-{seed}")
        assert line.fallback is None
        return line.plan

    async def answer(self, seed: int) -> None:
        body = {"model": "sim", "prompt": prompt(seed, 4), "max_tokens": 4000, "stream": True, "ignore_eos": True}
        async with self.gateway.client.stream("POST", PATH, json=body) as reply:
            async for _ in reply.aiter_raw():
                pass

    @property
    def metrics(self) -> EngineMetrics:
        """Of the decode engine, as the gateway has them."""
        (runtime,) = self.gateway.gateway.directory.runtimes
        endpoints = self.gateway.gateway.fleet.endpoints(runtime.model)
        return next(one.metrics for one in endpoints if one.engine.url == self.decode.url)


def prompt(seed: int, tokens: int) -> list[int]:
    return [1 + (seed * 7919 + position * (seed + 1)) % 250 for position in range(tokens)]


@contextlib.asynccontextmanager
async def pair(
    *, prefilling: dict[str, Any] | None = None, decoding: dict[str, Any] | None = None, answers: int = ANSWERS
) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        engines = []
        for role, more in (("producer", prefilling), ("consumer", decoding)):
            settings = EngineSettings(connector="nixl", kv_role=role, step_seconds=0.02, **(more or {}))
            engines.append(await stack.enter_async_context(simulated(settings)))
        config = split_config(
            [engines[0].url],
            [engines[1].url],
            parameters={"decide": "cost", "lam": 0.1},
            plugins=DEFAULT_PLUGINS,
            profiles=DEFAULT_PROFILES,
            fleet=PATIENT_FLEET,
        )
        endpoints = tuple(replace(endpoint, costs=BELIEVED) for endpoint in config.models[0].endpoints)
        config = replace(config, models=(replace(config.models[0], endpoints=endpoints),))
        gateway = await stack.enter_async_context(running(config))
        made = Pair(gateway, *engines)
        tasks = [asyncio.create_task(made.answer(1000 + seed)) for seed in range(answers)]
        try:
            await eventually(lambda: engines[1].running == answers, "all answers are being given")
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_long_prompts_are_split_and_what_is_short_or_held_is_not() -> None:
    async with pair() as made:
        assert await made.ask(1, 10) == "cheaper-whole"
        assert await made.ask(2, 600) == "split"
        await eventually(lambda: made.metrics.transfers.count >= 1, "a scrape tells of the transfer")
        transfers = made.metrics.transfers
        assert (transfers.count, transfers.tokens) == (1, 600)
        assert transfers.bytes >= 600 * BYTES_PER_TOKEN
        # The same prompt once more: the decode engine holds it, but for its last block.
        body = {"model": "sim", "prompt": [*prompt(2, 600), 9], "max_tokens": 1}
        assert (await made.gateway.client.post(PATH, json=body)).status_code == 200
        assert made.gateway.lines[-1].plan == "cheaper-whole"


async def test_where_nobody_is_answered_there_is_nobody_to_spare() -> None:
    async with pair(answers=0) as made:
        assert await made.ask(1, 600) == "cheaper-whole"


async def test_behind_a_queue_of_prefills_the_decode_engine_computes() -> None:
    async with pair(prefilling={"prefill_token_seconds": 1e-3}) as made:
        reasons = await asyncio.gather(*(made.ask(seed, 600) for seed in range(6)))
        assert set(reasons) == {"split", "cheaper-whole"}
        await eventually(lambda: not made.prefill.running, "the queue is gone")
        assert await made.ask(7, 600) == "split"


async def test_where_moving_is_seen_to_be_slow_the_decode_engine_computes() -> None:
    async with pair(decoding={"kv_transfer_seconds": 2e-3}) as made:
        assert await made.ask(1, 600) == "split"
        await eventually(lambda: made.metrics.transfers.count >= 1, "a scrape tells of the transfer")
        assert await made.ask(2, 600) == "cheaper-whole"
