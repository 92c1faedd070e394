from __future__ import annotations

import asyncio
from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.observer import NULL_OBSERVER
from gateway.errors import Saturated
from gateway.flow.admission import LATEST, SOONEST, Admission
from gateway.flow.settings import FlowSettings
from tests.support.examples import examples


@pytest.fixture
def clock(manual_clock):
    return manual_clock()


@pytest.fixture
def seen(queues):
    return queues()


@pytest.fixture
def gate(clock, seen):
    def make(max_in_flight: int = 1, max_queue: int = 10, queue_timeout: float = 30.0) -> Admission:
        return Admission(FlowSettings(max_in_flight, max_queue, queue_timeout), "m", clock, seen)

    return make


async def steps(count: int = 5) -> None:
    """Let every task that can go on, go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def entering(admission: Admission) -> asyncio.Task:
    return asyncio.create_task(admission.acquire())


async def test_where_there_is_room_nobody_waits(gate, seen):
    admission = gate(max_in_flight=2)
    first, second = await admission.acquire(), await admission.acquire()
    assert (admission.in_flight, admission.waiting) == (2, 0)
    first.release()
    first.release()
    assert admission.in_flight == 1
    second.release()
    assert admission.in_flight == 0
    assert seen.lengths == []


async def test_who_cannot_wait_has_a_place_or_none(gate, seen):
    admission = gate()
    permit = admission.try_acquire()
    assert permit is not None
    assert (admission.try_acquire(), admission.in_flight, admission.waiting) == (None, 1, 0)
    permit.release()
    assert admission.try_acquire() is not None


async def test_first_come_first_served(gate, seen):
    admission = gate(max_in_flight=1)
    holder = await admission.acquire()
    order: list[int] = []

    async def ask(number: int) -> None:
        permit = await admission.acquire()
        order.append(number)
        permit.release()

    tasks = [asyncio.create_task(ask(number)) for number in range(5)]
    await steps()
    assert (admission.in_flight, admission.waiting) == (1, 5)
    holder.release()
    # A newcomer does not overtake those who wait.
    late = asyncio.create_task(ask(99))
    await asyncio.gather(*tasks, late)
    assert order == [0, 1, 2, 3, 4, 99]
    assert (admission.in_flight, admission.waiting) == (0, 0)
    assert seen.lengths[:5] == [1, 2, 3, 4, 5]
    assert seen.lengths[-1] == 0


async def test_other_limits_hold_at_once(gate, seen):
    admission = gate(max_in_flight=1)
    first = await admission.acquire()
    waiting = [entering(admission) for _ in range(3)]
    await steps()
    admission.set_limits(FlowSettings(max_in_flight=3, max_queue=0))
    await steps()
    assert [one.done() for one in waiting] == [True, True, False]
    assert (admission.in_flight, admission.waiting) == (3, 1)
    with pytest.raises(Saturated):
        await admission.acquire()
    admission.set_limits(FlowSettings(max_in_flight=1))
    for permit in (first, waiting[0].result()):
        permit.release()
        await steps()
        assert not waiting[2].done(), "one is still in flight"
    waiting[1].result().release()
    (await waiting[2]).release()
    assert (admission.in_flight, admission.waiting, seen.lengths[-1]) == (0, 0, 0)


async def test_a_full_queue_refuses_at_once(gate):
    admission = gate(max_in_flight=1, max_queue=1)
    holder = await admission.acquire()
    waiting = entering(admission)
    await steps()
    with pytest.raises(Saturated, match="1 requests are in flight and 1 are waiting") as caught:
        await admission.acquire()
    assert caught.value.retry_after == 30
    assert admission.waiting == 1
    holder.release()
    (await waiting).release()


async def test_without_a_queue(gate):
    admission = gate(max_in_flight=1, max_queue=0)
    holder = await admission.acquire()
    with pytest.raises(Saturated):
        await admission.acquire()
    holder.release()
    (await admission.acquire()).release()


async def test_a_wait_has_an_end(gate, seen):
    admission = gate(max_in_flight=1, queue_timeout=0.01)
    holder = await admission.acquire()
    with pytest.raises(Saturated, match=r"no room within 0\.01 seconds"):
        await admission.acquire()
    assert (admission.in_flight, admission.waiting) == (1, 0)
    assert seen.lengths == [1, 0]
    holder.release()
    assert admission.in_flight == 0


async def test_cancelled_while_waiting(gate, seen):
    admission = gate(max_in_flight=1)
    holder = await admission.acquire()
    first, second = entering(admission), entering(admission)
    await steps()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert admission.waiting == 1
    holder.release()
    permit = await second
    assert admission.in_flight == 1
    permit.release()
    assert admission.in_flight == 0
    assert seen.lengths[-1] == 0


async def test_cancelled_at_the_moment_of_its_turn(gate):
    admission = gate(max_in_flight=1)
    holder = await admission.acquire()
    first, second = entering(admission), entering(admission)
    await steps()
    holder.release()  # first has its permit, and does not know yet
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    permit = await second
    assert admission.in_flight == 1
    permit.release()
    assert admission.in_flight == 0


async def test_its_turn_comes_at_the_moment_of_its_cancellation(gate):
    admission = gate(max_in_flight=1)
    holder = await admission.acquire()
    first, second = entering(admission), entering(admission)
    await steps()
    first.cancel()
    holder.release()  # first is still in the queue, and no longer wants it
    with pytest.raises(asyncio.CancelledError):
        await first
    (await second).release()
    assert admission.in_flight == 0


async def test_cancelled_at_the_moment_of_its_deadline(gate):
    admission = gate(max_in_flight=1, queue_timeout=3600)
    holder = await admission.acquire()
    first = entering(admission)
    await steps()
    (turn,) = admission._queue
    admission._time_out(turn)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert admission.waiting == 0
    holder.release()
    assert admission.in_flight == 0


async def test_a_turn_that_came_first_beats_the_deadline(gate):
    admission = gate(max_in_flight=1, queue_timeout=3600)
    holder = await admission.acquire()
    first = entering(admission)
    await steps()
    (turn,) = admission._queue
    holder.release()
    admission._time_out(turn)
    (await first).release()
    assert admission.in_flight == 0


async def test_a_deadline_that_came_first_leaves_the_turn_to_the_next(gate):
    admission = gate(max_in_flight=1, queue_timeout=3600)
    holder = await admission.acquire()
    first, second = entering(admission), entering(admission)
    await steps()
    admission._time_out(next(iter(admission._queue)))
    holder.release()
    with pytest.raises(Saturated):
        await first
    (await second).release()
    assert admission.in_flight == 0


async def test_retry_after_follows_the_rate_of_departures(gate, clock):
    admission = gate(max_in_flight=10, max_queue=100)
    assert admission.retry_after() == 30  # nothing is known: as long as one may wait
    for _ in range(20):
        (await admission.acquire()).release()
        clock.now += 0.5
    assert admission.retry_after() == SOONEST
    holders = [await admission.acquire() for _ in range(10)]
    tasks = [entering(admission) for _ in range(39)]
    await steps()
    # 40 places at two a second.
    assert admission.retry_after() == 20
    clock.now += 3600
    assert admission.retry_after() == LATEST
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for holder in holders:
        holder.release()
    assert (admission.in_flight, admission.waiting) == (0, 0)


@given(
    seed=st.integers(0, 2**32),
    limit=st.integers(1, 3),
    queue=st.integers(0, 4),
    actions=st.lists(st.sampled_from(["enter", "leave", "cancel", "expire", "step", "advance"]), max_size=60),
)
@examples(150)
def test_no_interleaving_loses_or_invents_a_place(manual_clock, seed, limit, queue, actions):
    async def run() -> None:
        clock, chance = manual_clock(), Random(seed)
        admission = Admission(FlowSettings(limit, queue, 3600.0), "m", clock, NULL_OBSERVER)
        tasks: deque[asyncio.Task] = deque()
        permits = []

        def collect() -> None:
            for task in list(tasks):
                if task.done():
                    tasks.remove(task)
                    if not task.cancelled() and task.exception() is None:
                        permits.append(task.result())

        for action in [*actions, "end"]:
            if action == "enter":
                tasks.append(entering(admission))
            elif action == "leave" and permits:
                permits.pop(chance.randrange(len(permits))).release()
            elif action == "cancel" and tasks:
                chance.choice(tasks).cancel()
            elif action == "expire" and admission._queue:
                admission._time_out(chance.choice(list(admission._queue)))
            elif action == "step":
                await asyncio.sleep(0)
            elif action == "advance":
                clock.now += chance.random()
            collect()
            assert len(permits) <= admission.in_flight <= limit
            assert admission.waiting <= queue
            # Whoever waits does so because every place is taken.
            assert admission.in_flight == limit or all(turn.done() for turn in admission._queue)
            assert SOONEST <= admission.retry_after() <= LATEST
        for _ in range(200):
            await asyncio.sleep(0)
            collect()
            if not tasks and not permits:
                break
            if permits:
                permits.pop().release()
        # Everyone who wanted in and stayed has been in, and nothing is left.
        assert not tasks
        assert (admission.in_flight, admission.waiting) == (0, 0)

    asyncio.run(run())
