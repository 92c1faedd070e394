from __future__ import annotations

import asyncio
from math import inf

import pytest

from gateway.errors import NoEndpoint
from gateway.flow.settings import FlowSettings
from gateway.flow.standby import AT_ONCE, Standby
from gateway.framework import Kind, Request
from gateway.framework.fleet import Model

LONG = 300.0


async def steps(count: int = 5) -> None:
    """Let every task that can go on, go on."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def clock(manual_clock):
    return manual_clock()


class Fleet:
    """``up``: adapters of the one endpoint, None among them where it serves the model itself; empty: there is none."""

    def __init__(self) -> None:
        self.up: set[str | None] = set()
        self.begun = 0

    def begins(self) -> None:
        self.begun += 1


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture
def make(clock, fleet):
    def make(timeout: float | None = LONG, max_queue: int = 100) -> Standby:
        standby = Standby(FlowSettings(max_queue=max_queue, no_endpoint_timeout=timeout), "m", clock)
        standby.usable = lambda needs: needs.adapter in fleet.up
        standby.why = lambda: "asleep 2"
        standby.begins = fleet.begins
        return standby

    return make


@pytest.fixture
def request_of(clock):
    def request_of(adapter: str | None = None) -> Request:
        return Request("id", Model("m"), Kind.CHAT, clock.monotonic(), adapter=adapter)

    return request_of


def waiting(standby: Standby, request: Request, timeout: float = inf) -> asyncio.Task[None]:
    return asyncio.create_task(standby.wait(request, timeout))


async def test_without_a_timeout_all_pass(make, request_of):
    assert make(timeout=None).passes(request_of())
    assert make(timeout=0).passes(request_of())
    assert not make(timeout=0).holds


async def test_all_are_released_in_order_and_a_few_in_each_turn(make, fleet, request_of):
    standby, order = make(), []
    request = request_of()
    assert not standby.passes(request)

    async def one(number: int) -> None:
        await standby.wait(request, inf)
        order.append(number)

    count = 3 * AT_ONCE
    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    await steps()
    assert (standby.waiting, fleet.begun) == (count, count)
    standby.look()
    await steps()
    assert standby.waiting == count, "nothing has changed"
    fleet.up.add(None)
    standby.look()
    assert not standby.passes(request), "who comes now is behind them"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(order) < count
    behind = asyncio.create_task(one(count))
    await asyncio.gather(*tasks, behind)
    assert order == [*range(count + 1)]
    assert (standby.waiting, standby.passes(request)) == (0, True)


async def test_who_waits_for_an_adapter_keeps_back_nobody_else(make, fleet, request_of):
    standby = make(max_queue=1)
    fleet.up.add(None)
    other = waiting(standby, request_of("lora"))
    await steps()
    assert standby.passes(request_of()), "although as many stand by as may"
    assert not standby.passes(request_of("lora"))
    with pytest.raises(NoEndpoint):
        await standby.wait(request_of("lora"), inf)
    standby.look()
    await steps()
    assert (other.done(), standby.waiting) == (False, 1)
    fleet.up.add("lora")
    standby.look()
    await asyncio.wait_for(other, LONG)
    assert standby.passes(request_of("lora"))


async def test_who_comes_behind_others_for_nothing_goes_on_soon(make, fleet, request_of):
    standby, order = make(), []
    tasks = [waiting(standby, request_of()) for _ in range(2)]
    await steps()
    fleet.up.add(None)
    tasks.append(waiting(standby, request_of()))
    for number, task in enumerate(tasks):
        task.add_done_callback(lambda _, number=number: order.append(number))
    await asyncio.wait_for(asyncio.gather(*tasks), LONG)
    assert order == [0, 1, 2]


async def test_an_engine_is_sought_again_whenever_the_endpoints_change(make, fleet, request_of):
    standby = make()
    standby.look()
    task = waiting(standby, request_of())
    await steps()
    standby.look()
    await steps()
    assert fleet.begun == 2, "the one that can be woken may be known only now"
    fleet.up.add(None)
    standby.look()
    await asyncio.wait_for(task, LONG)
    standby.look()
    await steps()
    assert fleet.begun == 2


async def test_after_the_time_the_answer_says_why(make, request_of):
    standby = make(timeout=0.01)
    with pytest.raises(NoEndpoint, match="none came in time: asleep 2") as refused:
        await standby.wait(request_of(), inf)
    assert refused.value.retry_after
    standby.set_limits(FlowSettings(no_endpoint_timeout=LONG))
    with pytest.raises(NoEndpoint):
        await standby.wait(request_of(), 0.01)  # its client's own wish
    assert standby.waiting == 0


async def test_the_time_counts_from_the_arrival(make, clock, request_of):
    standby, request = make(timeout=10.0), request_of()
    clock.now += 11.0
    with pytest.raises(NoEndpoint):
        await standby.wait(request, inf)


async def test_so_many_may_wait(make, request_of):
    standby = make(max_queue=1)
    first = waiting(standby, request_of())
    await steps()
    with pytest.raises(NoEndpoint, match="1 requests wait for one already"):
        await standby.wait(request_of(), inf)
    first.cancel()
    await asyncio.wait([first])
    assert standby.waiting == 0


async def test_who_leaves_just_as_it_is_released_leaves_nothing_behind(make, fleet, request_of):
    standby = make()
    tasks = [waiting(standby, request_of()) for _ in range(2)]
    await steps()
    fleet.up.add(None)
    standby.look()
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks)
    assert (tasks[0].cancelled(), tasks[1].exception(), standby.waiting) == (True, None, 0)
