from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop
import zmq

from gateway.kvcache.events.listener import EventListener, ListenerSource
from gateway.kvcache.events.poller import IDLE, PATIENCE, PER_TURN, TICK, Poller
from gateway.kvcache.events.subscription import Subscription
from tests.kvcache.conftest import Follower, ScriptedPublisher, Tally, ids, stored, tokens_held
from tests.support.wait import eventually

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Taker:
    """Takes one message of its socket in each turn after it was woken. ``stuck``: it takes none."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], number: int) -> None:
        self.sender, self.socket = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self.sender.bind(f"inproc://{number}")
        self.socket.connect(f"inproc://{number}")
        self.idle = True
        self.stuck = False
        self.woken = 0
        self.taken = 0

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self.sender.send(b"", zmq.NOBLOCK)

    def wake(self) -> None:
        self.woken += 1
        self.idle = False
        asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        if self.stuck:
            return
        if self.socket.poll(0):
            self.socket.recv(zmq.NOBLOCK)
            self.taken += 1
            asyncio.get_running_loop().call_soon(self._take)
        else:
            self.idle = True


@contextmanager
def takers(poller: Poller, count: int) -> Iterator[list[Taker]]:
    with zmq.Context() as context:
        some = [Taker(context, number) for number in range(count)]
        for one in some:
            poller.add(one.socket, one)
        try:
            yield some
        finally:
            for one in some:
                poller.remove(one.socket)
                one.sender.close(linger=0)
                one.socket.close(linger=0)
        assert poller._timer is None, "nothing is left behind"


def at(loop: Callable[[], asyncio.AbstractEventLoop], run: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_all_are_looked_at_together_as_long_as_they_stay(loop: Callable[[], asyncio.AbstractEventLoop]):
    async def run() -> None:
        poller = Poller(0.001)
        with takers(poller, 3) as (one, other, silent):
            for _ in range(5):
                before = one.taken
                one.send()
                other.send()
                await eventually(lambda before=before: one.taken == other.taken == before + 1, "both are woken")
            poller.remove(one.socket)
            poller.remove(one.socket)
            before = one.woken
            one.send()
            other.send()
            await eventually(lambda: other.taken == 6, "the other stays")
            assert one.woken == before
            assert not silent.woken

    at(loop, run)


async def test_nobody_leaves_no_timer():
    poller = Poller(60.0)
    with takers(poller, 2) as (one, other):
        timer = poller._timer
        assert timer is not None
        poller.remove(one.socket)
        assert not timer.cancelled()
        poller.remove(other.socket)
        assert timer.cancelled()
        assert poller._timer is None


@pytest.mark.parametrize("loop", LOOPS)
def test_before_a_request_is_placed_what_has_come_is_applied(loop: Callable[[], asyncio.AbstractEventLoop]):
    async def run() -> None:
        poller = Poller(60.0)
        await poller.catch_up()
        with takers(poller, 2 * PER_TURN + 1) as some:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            await asyncio.sleep(0)
            before = turns
            await poller.catch_up()
            assert turns == before, "nothing has come: nobody waits"
            poller._looked_at = 0.0  # what follows does not depend on how fast it is
            for one in some:
                one.send(3)
            before = turns
            await poller.catch_up()
            assert [one.taken for one in some] == [3] * len(some), "whole, not only begun"
            assert turns - before >= 3 * 3, "some engines' at a time: others have their turns"
            counting.cancel()

    at(loop, run)


async def test_a_look_that_is_fresh_is_not_repeated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.kvcache.events.poller.FRESH", 60.0)  # however long this test takes
    poller = Poller(100.0)
    with takers(poller, 1) as (one,):
        one.send()
        await poller.catch_up()
        assert one.taken == 1
        one.send()
        await poller.catch_up()
        assert one.taken == 1


async def test_all_that_ask_at_once_wait_for_one_look():
    poller = Poller(60.0)
    with takers(poller, 1) as (one,):
        one.send(20)
        asking = [asyncio.create_task(poller.catch_up()) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()  # its client has left: what it began goes on
        await asyncio.wait(asking)
        assert one.taken == 20
        assert one.woken <= 2, "not once for each"
        assert [task.cancelled() for task in asking] == [True, False, False, False, False]


async def test_who_does_not_come_to_an_end_holds_up_nobody_for_long():
    poller = Poller(60.0)
    with takers(poller, PER_TURN + 1) as some:
        some[0].stuck = True
        for one in some:
            one.send()
        await poller.catch_up()
        assert [one.taken for one in some] == [0] + [1] * PER_TURN
        assert poller._turns >= PATIENCE


async def test_who_leaves_while_others_are_woken_is_not_woken():
    poller = Poller(60.0)
    with takers(poller, PER_TURN + 2) as some:
        for one in some:
            one.send()
        asking = asyncio.create_task(poller.catch_up())
        await asyncio.sleep(0)
        assert [one.woken for one in some] == [1] * PER_TURN + [0, 0]
        some[0].stuck = True
        poller.remove(some[0].socket)  # nobody waits for it
        poller.remove(some[-1].socket)
        await asking
        assert [one.woken for one in some] == [1] * (PER_TURN + 1) + [0]
        assert poller._turns < PATIENCE


LONG_MESSAGES = 60
"""Of 20 blocks each: they come in one batch, and are applied in many turns."""


async def caught_up(poller: Poller, engine: ScriptedPublisher, follower: Follower, idle: Callable[[], bool]) -> None:
    """Publish, and let only requests look. Whatever a look finds is applied when it ends."""
    for number in range(LONG_MESSAGES):
        blocks = range(20 * number, 20 * number + 20)
        await engine.publish(
            stored([10 + block for block in blocks], ids(*blocks), parent=9 + blocks[0] if number else None)
        )
    everything = ids(*range(20 * LONG_MESSAGES))
    async with asyncio.timeout(30):
        while tokens_held(follower.index, 0, everything) < len(everything):
            poller._looked_at = 0.0
            await poller.catch_up()
            assert idle()
            assert follower.tally.events["stored"] == tokens_held(follower.index, 0, everything) // 16
    assert poller._done.is_set()


async def test_what_an_engine_has_sent_is_applied_and_not_only_taken(engine: ScriptedPublisher, follower: Follower):
    poller = Poller(60.0)
    source = Subscription(engine.address, "", poller)
    stream = follower.follow_from(source, engine.replay)
    await engine.subscribed()
    await stream.synced.wait()
    await caught_up(poller, engine, follower, lambda: source.idle and not source._next)


async def test_so_is_what_comes_to_our_own_port(follower: Follower, tally: Tally):
    poller, listener = Poller(60.0), EventListener("tcp://127.0.0.1:0", [], tally)
    listener.start(poller)
    engine = ScriptedPublisher()
    engine.binds, engine.address, engine.topic = False, listener.address_of(0), b"kv"
    await engine.start()
    try:
        stream = follower.follow_from(ListenerSource(listener, "kv"), engine.replay)
        await engine.subscribed()
        await stream.synced.wait()
        await engine.publish(stored([5], ids(50_000)))
        async with asyncio.timeout(30):
            while stream.state != "live":  # its first message shows which connection is its own
                poller._looked_at = 0.0
                await poller.catch_up()
                await asyncio.sleep(0)
        follower.tally.events.clear()
        await caught_up(poller, engine, follower, lambda: listener.port(0).idle)
    finally:
        await follower.close()
        await engine.stop()
        await listener.close()


async def test_a_placement_has_what_comes_after_it_looked_at_sooner(monkeypatch: pytest.MonkeyPatch):
    """What its engine reports is known when its answer is learned from, though nobody asks again."""
    monkeypatch.setattr("gateway.kvcache.events.poller.LINGER", 60.0)  # however long this test takes
    poller = Poller(60.0)
    with takers(poller, 1) as (one,):
        one.send()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not one.woken
        loop = asyncio.get_running_loop()
        assert poller._timer.when() > loop.time() + 30.0
        await poller.catch_up(placing=False)
        assert one.taken == 1
        assert poller._timer.when() > loop.time() + 30.0, "who reads metrics places nothing"
        await poller.catch_up()
        assert poller._timer.when() <= loop.time() + TICK + 0.01
        one.send()
        await eventually(lambda: one.taken == 2, "it is looked at")
        assert poller._timer.when() <= loop.time() + TICK + 0.01, "and so on, for a while"


async def test_the_look_after_a_long_one_comes_sooner_while_nobody_asks():
    """Else a request would have to wait for all that came since."""
    poller = Poller(IDLE)
    with takers(poller, 1) as (one,):
        for pause in (IDLE / 2, IDLE / 4, IDLE / 8):
            one.send(PATIENCE)
            poller._looked_at = 0.0
            await poller.catch_up(placing=False)
            assert poller._pause == pause
        for _ in range(10):
            one.send(PATIENCE)
            poller._looked_at = 0.0
            await poller.catch_up(placing=False)
        assert poller._pause == TICK
        for _ in range(10):
            one.send()
            poller._looked_at = 0.0
            await poller.catch_up(placing=False)
        assert poller._pause == IDLE
