"""Requests that came in one turn of the loop: each stage has them all before the next one begins; without sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.proxy.serving.stages import Stages
from tests.support.chat import COMPLETE, chat
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene
from tests.support.wire import answer


def recorded(scene: Scene) -> list[str]:
    """What is done from now on, as it is done."""
    order: list[str] = []
    tokenize, place, ask = scene.runtime.tokens.tokenize, scene.placer.place, scene.forwarder.leg

    async def tokenized(*given: Any, **named: Any) -> Any:
        order.append("tokenize")
        return await tokenize(*given, **named)

    def placed(*given: Any) -> Any:
        order.append("place")
        return place(*given)

    def sent(*given: Any, **named: Any) -> Any:
        order.append("send")
        return ask(*given, **named)

    scene.runtime.tokens.tokenize, scene.placer.place, scene.forwarder.leg = tokenized, placed, sent
    return order


async def test_requests_of_one_turn_go_through_each_stage_together():
    async with Scene() as scene:
        order, stages = recorded(scene), Stages()
        stages.waiting = 1  # another one has come, and is begun behind these
        tasks = [scene.ask(MemoryClient(chat(), stages=stages)) for _ in range(3)]
        sides = [await scene.engines.request() for _ in tasks]
        assert order == ["tokenize"] * 3 + ["place"] * 3 + ["send"] * 3
        assert stages.waiting == 1
        for side in sides:
            side.say(answer(COMPLETE))
        await asyncio.gather(*tasks)
        scene.has_all_back(3)


async def test_the_last_of_them_waits_for_those_that_wait():
    async with Scene() as scene:
        order, stages = recorded(scene), Stages()
        first, last = (MemoryClient(chat(), stages=stages) for _ in range(2))
        receive = last.receive

        async def begun(**wanted: Any) -> bytes:
            stages.waiting -= 1
            return await receive(**wanted)

        last.receive = begun
        stages.waiting = 1
        tasks = [scene.ask(first), scene.ask(last)]
        sides = [await scene.engines.request() for _ in tasks]
        assert order == ["tokenize"] * 2 + ["place"] * 2 + ["send"] * 2
        assert stages.waiting == 0
        for side in sides:
            side.say(answer(COMPLETE))
        await asyncio.gather(*tasks)
        scene.has_all_back(2)


async def test_one_that_is_alone_does_all_at_once():
    async with Scene() as scene:
        order, stages = recorded(scene), Stages()
        task = scene.ask(MemoryClient(chat(), stages=stages))
        await asyncio.sleep(0)
        assert order == ["tokenize", "place", "send"]
        (await scene.engines.request()).say(answer(COMPLETE))
        await task


@pytest.mark.parametrize("stage", [1, 2, 3])
async def test_a_client_that_leaves_between_two_stages_leaves_nothing(stage: int, tokenizer: str):
    async with Scene(tokenizer=tokenizer) as scene:
        await scene.runtime.tokens.load()
        order, stages = recorded(scene), Stages()
        stages.waiting = 1
        task = scene.ask(MemoryClient(chat(), stages=stages))
        for _ in range(stage):
            await asyncio.sleep(0)
        assert order == ["tokenize", "place"][: stage - 1]
        await scene.left(task)
        assert stages.waiting == 1
        scene.has_all_back()
