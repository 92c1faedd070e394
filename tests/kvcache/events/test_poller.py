from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
import uvloop

from gateway.kvcache.events.poller import PER_TURN, Poller
from tests.support.wait import eventually

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Counting:
    """One that has something for the first ``looks`` looks."""

    def __init__(self, looks: int = 10**9) -> None:
        self.left = looks
        self.at: list[float] = []

    def poll(self) -> bool:
        self.at.append(asyncio.get_running_loop().time())
        self.left -= 1
        return self.left > 0

    def check(self) -> bool:
        self.at.append(asyncio.get_running_loop().time())
        return self.left > 0


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_all_are_looked_at_together_as_long_as_they_stay(loop_factory: Callable[[], asyncio.AbstractEventLoop]):
    async def run() -> None:
        poller, short, long = Poller(0.001), Counting(3), Counting()
        began = asyncio.get_running_loop().time()
        poller.add(short)
        poller.add(long)
        poller.add(long)
        assert short.at == long.at == []
        await eventually(lambda: len(long.at) >= 6, "it goes on")
        assert len(short.at) == 3, "who has said that nothing comes is not looked at"
        assert long.at[-1] - began >= 0.001
        poller.add(short)
        await eventually(lambda: len(short.at) == 4, "it has joined again")
        poller.remove(long)
        seen = len(long.at)
        poller.add(short)
        await eventually(lambda: len(short.at) == 5, "it has joined again")
        assert len(long.at) == seen

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


async def test_nobody_leaves_no_timer():
    poller, one, other = Poller(60.0), Counting(), Counting()
    poller.remove(one)
    poller.add(one)
    poller.add(other)
    timer = poller._timer
    assert timer is not None
    poller.remove(one)
    assert not timer.cancelled()
    poller.remove(other)
    assert timer.cancelled()
    assert poller._timer is None
    poller = Poller(0.0)
    poller.add(Counting(1))
    await eventually(lambda: poller._timer is None, "the last has left by itself")


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_others_run_while_many_are_looked_at(loop_factory: Callable[[], asyncio.AbstractEventLoop]):
    async def run() -> None:
        poller, many = Poller(60.0), [Counting() for _ in range(3 * PER_TURN + 1)]
        for one in many:
            poller.add(one)
        poller._poll_all()
        looked = [sum(len(one.at) for one in many)]
        poller.remove(many[-2])  # as one that is closed
        while looked[-1] < len(many) - 1:
            await asyncio.sleep(0)
            looked.append(sum(len(one.at) for one in many))
        assert looked[0] == PER_TURN
        assert max(later - earlier for earlier, later in itertools.pairwise(looked)) <= PER_TURN
        assert not many[-2].at
        for one in many:
            poller.remove(one)
        assert poller._timer is None

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_before_a_request_is_placed_what_has_come_is_looked_at_if_the_last_look_is_not_fresh(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.kvcache.events.poller.FRESH", 60.0)  # however long this test takes

    async def run() -> None:
        poller, many, silent = Poller(60.0), [Counting() for _ in range(2 * PER_TURN + 1)], Counting(0)
        await poller.catch_up()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        for one in (*many, silent):
            poller.add(one)
        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        before = turns
        await poller.catch_up()
        assert [len(one.at) for one in (*many, silent)] == [1] * (len(many) + 1)
        assert turns - before == 3, "those of some engines are applied between two turns"
        await poller.catch_up()
        assert all(len(one.at) == 1 for one in many), "it is fresh"
        counting.cancel()
        for one in (*many, silent):
            poller.remove(one)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
