"""A client that goes away, in each phase of its request: all that it had is given back; without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.core.prompt import estimate
from gateway.flow.settings import FlowSettings
from gateway.proxy.serving.client import ClientGone
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD, chat
from tests.support.examples import slowly
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene, split
from tests.support.split import PREFILLED
from tests.support.wire import STREAM_HEAD, answer, chunked

LONG = chat()
"""Of many blocks."""
LONG_STREAMED = chat(stream=True)


async def receiving(scene: Scene) -> asyncio.Task[None]:
    task = scene.ask(MemoryClient(LONG, arrives=asyncio.Event()))
    await asyncio.sleep(0)
    assert scene.memory.held > 0
    return task


async def queued(scene: Scene) -> asyncio.Task[None]:
    permit = scene.runtime.admission.try_acquire()
    task = scene.ask(MemoryClient(LONG))
    await asyncio.sleep(0)
    assert scene.runtime.admission.waiting == 1
    task.add_done_callback(lambda _: permit.release())
    return task


async def tokenizing(scene: Scene) -> asyncio.Task[None]:
    began = asyncio.Event()

    async def slow(*_: object, **__: object) -> object:
        began.set()
        await asyncio.Event().wait()
        return estimate(b"x", "slow")

    scene.runtime.tokens.tokenize = slow
    task = scene.ask(MemoryClient(LONG))
    await began.wait()
    return task


async def before_commit(scene: Scene) -> asyncio.Task[None]:
    task = scene.ask(MemoryClient(LONG_STREAMED))
    (await scene.engines.request()).say(STREAM_HEAD + chunked(b": wait\n\n", end=False))
    return task


async def streaming(scene: Scene) -> asyncio.Task[None]:
    return (await scene.begun(MemoryClient(LONG_STREAMED), ROLE, WORD))[0]


async def done(scene: Scene) -> asyncio.Task[None]:
    """Its engine has said all, and the client has not taken it."""
    client = MemoryClient(LONG, room=0)
    task = scene.ask(client)
    (await scene.engines.request()).say(answer(COMPLETE))
    await client.begun.wait()
    assert client.answer.full
    return task


PHASES = [receiving, queued, tokenizing, before_commit, streaming, done]


@pytest.mark.parametrize("reach", PHASES, ids=lambda reach: reach.__name__)
async def test_a_client_that_leaves_gives_all_back(
    reach: Callable[[Scene], Awaitable[asyncio.Task[None]]], tokenizer: str
):
    phase = reach.__name__.replace("_", "-")
    async with Scene(limits=FlowSettings(max_in_flight=1), tokenizer=tokenizer) as scene:
        await scene.runtime.tokens.load()
        task = await reach(scene)
        if scene.engines.sides:
            assert scene.runtime.index.blocks > 0, "what its engine would hold then"
        sides = scene.engines.sides
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scene.notes.left == [phase]
        assert (scene.line.outcome, scene.line.status, scene.line.phase) == ("cancelled", 499, phase)
        assert [side.closed for side in sides] == {
            "before-commit": [True],
            "streaming": [True],
            "done": [False],  # it is complete, and its connection can take another
        }.get(phase, [])
        await asyncio.sleep(0)  # the turn in which the task's callbacks run
        scene.has_all_back()


@pytest.mark.parametrize("legs", [2, *slowly(1)])
async def test_a_client_that_leaves_in_any_turn_gives_all_back(legs: int, tokenizer: str):
    """Of the loop: an engine that was asked says its next piece in every third."""
    outcomes: list[str] = []
    phases: set[str] = set()
    while outcomes[-1:] != ["ok"]:
        assert len(outcomes) < 100, "it never ends"
        async with Scene(2, tokenizer=tokenizer, **(split() if legs == 2 else {})) as scene:
            await scene.runtime.tokens.load()
            task = scene.ask(MemoryClient(LONG_STREAMED))
            await asyncio.sleep(0)
            stream = STREAM_HEAD, *(chunked(part, end=False) for part in (ROLE, *[WORD] * 3)), chunked(DONE)
            said = [(0, answer(PREFILLED))] * (legs - 1) + [(legs - 1, piece) for piece in stream]
            for number in range(len(outcomes)):
                await asyncio.sleep(0)
                if number % 3 == 0 and said and len(scene.engines.sides) > said[0][0]:
                    leg, piece = said.pop(0)
                    scene.engines.sides[leg].say(piece)
            await scene.left(task)
            outcomes.append(scene.line.outcome)
            phases.update(scene.notes.left)
            scene.has_all_back()
    assert set(outcomes[:-1]) == {"cancelled"}
    assert phases == {"before-commit", "streaming", "done"} | ({"prefill"} if legs == 2 else set())


async def test_a_client_that_is_gone_before_its_answer():
    async with Scene() as scene:
        client = MemoryClient(CHAT)
        task = scene.ask(client)
        side = await scene.engines.request()
        client.gone = True
        side.say(answer(COMPLETE))
        with pytest.raises(ClientGone):
            await task
        assert (scene.line.outcome, scene.line.status) == ("cancelled", 499)
        scene.has_all_back()


async def test_a_client_that_closes_its_half_ends_its_stream():
    async with Scene() as scene:
        task, side, reply = await scene.begun(MemoryClient(STREAMED), ROLE)
        reply.leave()
        with pytest.raises(ClientGone):
            await task
        assert side.closed, "which is how the engine learns to stop"
        assert not reply.attended
        assert (scene.line.outcome, scene.line.phase, scene.notes.left) == ("cancelled", "streaming", ["streaming"])
        scene.has_all_back()
