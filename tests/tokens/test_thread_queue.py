"""Which prompt has the next thread, and that nothing is left of one that leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from gateway.core.tasks import TaskSet
from gateway.tokens.thread_queue import AGEING, MOST_OWED, Closed, ThreadQueue
from tests.support.wait import eventually


class Busy:
    """One thread, which is held by a step until ``go``; then what waits runs one by one. ``done``: in which order."""

    def __init__(self) -> None:
        self.queue = ThreadQueue(1, "test")
        self.done: list[str] = []
        self.tasks = TaskSet()
        self._gate = threading.Event()

    async def hold(self, client: str = "holder", size: int = 1) -> asyncio.Task[bool]:
        held = self.tasks.start(self.queue.run(client, size, lambda: self._gate.wait(30)), name="hold")
        await asyncio.sleep(0)
        return held

    async def ask(self, client: str, size: int, name: str) -> asyncio.Task[None]:
        task = self.tasks.start(self.queue.run(client, size, lambda: self.done.append(name)), name=name)
        await asyncio.sleep(0)
        return task

    def go(self) -> None:
        self._gate.set()

    async def ends(self, *names: str) -> None:
        await eventually(lambda: len(self.done) >= len(names), "all have run")
        assert self.done == list(names)
        await self.idle()

    async def idle(self) -> None:
        await eventually(lambda: self.queue._free == 1, "the thread is free")
        assert self.queue.waiting == 0
        assert not self.queue._waiting


@pytest.fixture
async def busy() -> AsyncIterator[Busy]:
    one = Busy()
    yield one
    one.go()
    await one.tasks.close()
    one.queue.close()


async def test_the_shortest_is_next_whosever_it_is(busy):
    await busy.hold()
    for size in (8_000_000, 7_000_000, 7_500, 9_000_000):
        await busy.ask("a", size, str(size))
    await busy.ask("b", 5_000, "5000")
    busy.go()
    await busy.ends("5000", "7500", "7000000", "8000000", "9000000")


async def test_many_long_prompts_of_one_client_do_not_hold_back_anothers(busy):
    """Each costs its client as much as the other's is longer: they take turns."""
    await busy.hold()
    for number in range(4):
        await busy.ask("greedy", 2_000_000, f"greedy {number}")
    await busy.ask("other", 3_000_000, "other")
    busy.go()
    await busy.ends("greedy 0", "other", "greedy 1", "greedy 2", "greedy 3")


async def test_what_waits_long_enough_goes_before_any_short_one(busy, monkeypatch):
    """By the clock of the loop, which is set on instead of waited for."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    time = loop.time
    await busy.hold()
    await busy.ask("a", 2_000_000, "long")
    await busy.ask("a", 1_000, "short")
    monkeypatch.setattr(loop, "time", lambda: time() + ahead)
    ahead = 2_100_000 / AGEING
    await busy.ask("a", 1_000, "late and short")
    busy.go()
    await busy.ends("short", "long", "late and short")


async def test_a_client_is_charged_for_no_more_than_a_longest_prompt(busy):
    for _ in range(5):
        await busy.queue.run("heavy", MOST_OWED, lambda: None)
    await busy.hold("heavy", MOST_OWED)
    await busy.ask("heavy", 1_000, "heavy")
    await busy.ask("other", MOST_OWED + 2_000_000, "other")
    busy.go()
    await busy.ends("heavy", "other")


async def test_what_clients_owe_is_forgotten_once_it_is_paid(busy):
    for number in range(100):
        await busy.queue.run(f"client {number}", 1, lambda: None)
    await eventually(lambda: asyncio.get_running_loop().time() > 0)
    await busy.queue.run("last", 1, lambda: None)
    assert len(busy.queue._owed) < 100


@pytest.mark.parametrize("when", ["waiting", "given", "running"])
async def test_a_client_that_leaves_leaves_nothing(busy, when):
    await busy.hold()
    first = await busy.ask("a", 1, "first")
    await busy.ask("b", 2, "second")
    if when == "waiting":
        first.cancel()
        await asyncio.wait([first])
        assert busy.queue.waiting == 1
    elif when == "given":  # a thread in the same turn of the loop
        [waiting] = busy.queue._waiting["a"]
        waiting.granted.add_done_callback(lambda _: first.cancel())
    busy.go()
    await eventually(lambda: "second" in busy.done, "the next has its turn")
    if when == "running":
        held, gate = threading.Event(), threading.Event()
        running = busy.tasks.start(busy.queue.run("c", 1, lambda: (held.set(), gate.wait(30))), name="running")
        await eventually(held.is_set, "it runs")
        running.cancel()
        await asyncio.wait([running])
        waits = await busy.ask("d", 1, "third")
        assert busy.queue.waiting == 1, "a thread cannot be stopped: its place is taken until it is done"
        gate.set()
        await waits
    await busy.idle()
    assert first.cancelled() == (when != "running")


async def test_a_step_that_raises_gives_its_thread_back(busy):
    with pytest.raises(ZeroDivisionError):
        await busy.queue.run("a", 1, lambda: 1 // 0)
    await busy.idle()


async def test_what_waits_ends_with_the_threads(busy):
    held = await busy.hold()
    waits = await busy.ask("a", 1, "a")
    busy.queue.close()
    await asyncio.wait([waits])
    with pytest.raises(Closed):
        await waits
    assert busy.queue.waiting == 0
    with pytest.raises(Closed):
        await busy.queue.run("b", 1, lambda: None)
    busy.go()
    await asyncio.wait([held])
    assert held.result() is True, "what has begun ends"
