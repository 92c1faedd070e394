"""A model's queue in the proxy: requests wait until an engine has room, without sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import Saturated
from gateway.flow.settings import QueueSettings
from gateway.proxy.serving.timeline import Phase
from gateway.scheduling.settings import PluginSettings
from tests.support.chat import COMPLETE, DONE, TELLING, WORD, chat
from tests.support.gateway import IN_TURN
from tests.support.in_memory import EngineSide, MemoryClient
from tests.support.scene import Scene
from tests.support.wire import answer, chunked

NARROW = QueueSettings(window=1e-9, max_wait=60.0, patience=50.0)
"""An engine has room for one prompt that is not computed yet, and no more."""


def waiting(queue: QueueSettings = NARROW, *, engines: int = 1, **changes: Any) -> Scene:
    """A scene whose model has a queue."""
    plugins = (*IN_TURN["plugins"], PluginSettings(name="fair", type="fair-cost"))
    return Scene(engines, queue=queue, plugins=plugins, **changes)


async def begun(scene: Scene, count: int) -> tuple[list[asyncio.Task[None]], EngineSide]:
    """So many requests, of which the first is with the engine, and has no answer yet."""
    tasks = [scene.ask(MemoryClient(chat()))]
    side = await scene.engines.request()
    tasks += [scene.ask(MemoryClient(chat())) for _ in range(count - 1)]
    await scene.turn()
    assert scene.queue is not None
    assert scene.queue.held.waiting == count - 1
    return tasks, side


async def test_with_room_nothing_waits():
    async with waiting(QueueSettings()) as scene:
        client = await scene.answered(chat(), COMPLETE)
        assert client.answer is not None
        assert scene.line.queue_wait == 0
        assert next(iter(scene.decisions)).waited_for == ""
        scene.has_all_back()


async def test_one_waits_until_the_engine_has_room_and_the_decision_says_for_what():
    async with waiting() as scene:
        tasks, side = await begun(scene, 2)
        assert [endpoint.load.requests for endpoint in scene.endpoints] == [1], "it waits here, and not in the engine"
        scene.clock.now += 2.0
        side.say(answer(COMPLETE))
        (await scene.engines.request()).say(answer(COMPLETE))
        await asyncio.gather(*tasks)
        assert sorted(line.queue_wait for line in scene.notes.lines) == [0.0, 2.0]
        last = next(iter(scene.decisions))
        assert (last.waited, last.waited_for) == (2.0, "e0:1: prefill")
        assert last.to_json_at(0.0, 0.0)["waited"] == 2.0
        scene.has_all_back(2)


async def test_a_first_token_makes_room():
    async with waiting() as scene:
        first = scene.ask(MemoryClient(TELLING))
        side = await scene.engines.request()
        second = scene.ask(MemoryClient(chat()))
        await scene.turn()
        side.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        side.say(chunked(WORD, end=False))
        (await scene.engines.request()).say(answer(COMPLETE))
        await second
        assert not first.done()
        side.say(chunked(DONE))
        await first
        scene.has_all_back(2)


async def test_whoever_waits_too_long_is_refused_and_told_when_to_come_back():
    async with waiting(replace(NARROW, max_wait=0.05, patience=10.0)) as scene:
        tasks, side = await begun(scene, 2)
        scene.clock.now += 1.0
        with pytest.raises(Saturated) as refused:
            await tasks[1]
        assert refused.value.reason == "expired"
        assert refused.value.retry_after is not None
        assert refused.value.retry_after >= 1.0
        side.say(answer(COMPLETE))
        await tasks[0]
        assert sorted(line.status for line in scene.notes.lines) == [200, 429]
        scene.has_all_back(2)


async def test_a_clients_own_timeout_ends_its_wait():
    async with waiting() as scene:
        tasks, side = await begun(scene, 1)
        hurried = scene.ask(MemoryClient(chat(), headers=[("x-request-timeout", "0.05")]))
        await scene.turn()
        scene.clock.now += 1.0
        with pytest.raises(Saturated):
            await hurried
        side.say(answer(COMPLETE))
        await tasks[0]
        scene.has_all_back(2)


@pytest.mark.parametrize("who", [0, 1, 2])
async def test_a_client_that_leaves_leaves_nothing_and_the_next_is_placed(who: int):
    async with waiting() as scene:
        tasks, side = await begun(scene, 3)
        await scene.left(tasks[who])
        assert scene.notes.left == ["before-commit" if who == 0 else Phase.HELD]
        if who != 0:
            side.say(answer(COMPLETE))
        for _ in range(2 if who == 0 else 1):
            (await scene.engines.request()).say(answer(COMPLETE))
        await asyncio.gather(*[task for task in tasks if task is not tasks[who]])
        assert scene.queue is not None
        assert scene.queue.held.waiting == 0
        scene.has_all_back(3)


async def test_a_client_that_leaves_in_the_turn_in_which_it_is_placed_gives_its_place_back():
    async with waiting() as scene:
        tasks, side = await begun(scene, 3)
        queue = scene.queue
        assert queue is not None
        placed, place = asyncio.Event(), queue.place

        def place_and_leave(entry: Any, plan: Any) -> None:
            place(entry, plan)
            if not placed.is_set():
                placed.set()
                tasks[1].cancel()

        queue.place = place_and_leave  # type: ignore[method-assign]
        side.say(answer(COMPLETE))
        await placed.wait()
        (await scene.engines.request()).say(answer(COMPLETE))
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[1].cancelled()
        scene.has_all_back(3)


async def test_a_second_attempt_does_not_wait():
    async with waiting(engines=2) as scene:
        task = scene.ask(MemoryClient(chat()))
        side = await scene.engines.request()
        side.end(ConnectionResetError("reset"))
        (await scene.engines.request()).say(answer(COMPLETE))
        await task
        assert [line.attempts for line in scene.notes.lines] == [2]
        scene.has_all_back()


async def test_a_view_tells_what_waits_and_where_there_is_room():
    async with waiting() as scene:
        tasks, side = await begun(scene, 3)
        scene.clock.now += 1e-6
        assert scene.queue is not None
        view = scene.queue.view()
        assert (view.waiting, view.oldest) == ({0: 2}, pytest.approx(1e-6))
        assert view.seconds > 0
        [room] = view.rooms
        assert (room.endpoint, room.reason, room.factor) == ("e0:1", "prefill", 1.0)
        side.say(answer(COMPLETE))
        for _ in range(2):
            (await scene.engines.request()).say(answer(COMPLETE))
        await asyncio.gather(*tasks)
        assert scene.queue.view().waiting == {}
        scene.has_all_back(3)


async def test_a_defect_in_one_look_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.proxy.serving.queueing.AGAIN", 0.01)
    async with waiting() as scene:
        tasks, side = await begun(scene, 2)
        assert scene.queue is not None
        pump, failed = scene.queue.held.pump, asyncio.Event()

        def fail_once() -> float:
            if failed.is_set():
                return pump()
            failed.set()
            raise ValueError("a defect")

        monkeypatch.setattr(scene.queue.held, "pump", fail_once)
        side.say(answer(COMPLETE))
        (await scene.engines.request()).say(answer(COMPLETE))
        await asyncio.gather(*tasks)
        assert failed.is_set()
        scene.has_all_back(2)


async def test_what_cannot_be_booked_although_there_is_room_is_not_held(monkeypatch: pytest.MonkeyPatch):
    async with waiting(QueueSettings()) as scene:

        def fail(*_: Any) -> None:
            raise ValueError("a defect")

        monkeypatch.setattr(scene.placer, "book", fail)
        with pytest.raises(ValueError, match="a defect"):
            await scene.ask(MemoryClient(chat()))
        assert scene.queue is not None
        assert not scene.queue.held.live.new
        assert scene.queue.held.served == 0
        scene.has_all_back()
