"""The gateway's queue in virtual time: who waits, who is served before whom, and that all of it comes to an end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gateway.commands.replay.event_loop import Run
from gateway.commands.replay.policies import Policy, load_policy
from gateway.commands.replay.scene import Change, What
from gateway.commands.replay.statistics import quantile
from gateway.commands.replay.tenants.held import HeldGate
from gateway.commands.replay.tenants.ways import ORDERS
from gateway.commands.replay.workload import Result, TraceCall
from gateway.commands.replay.world import World
from gateway.errors import ConfigError
from gateway.flow.settings import QueueSettings
from tests.commands.replay.tenants.scenes import FLEET, Calls, call, run


def with_queue(**settings: float) -> Policy:
    policy = load_policy("default")
    [model] = policy.config.models
    model = replace(model, queue=QueueSettings(**settings))  # type: ignore[arg-type]  # by name
    return replace(policy, config=replace(policy.config, models=(model,)))


def flood(seconds: float = 6.0, rate: float = 40.0) -> list[TraceCall]:
    """More than the engines can do of a greedy tenant, and one request a second of a light one."""
    greedy = [call(number, number / rate, "greedy", 3000) for number in range(int(seconds * rate))]
    light = [call(10_000 + number, number + 0.5, "light", 1000) for number in range(int(seconds))]
    return sorted(greedy + light, key=lambda one: one.at)


def ttft(result: Result, tenant: str) -> list[float]:
    return sorted(record.ttft for record in result.records if record.call.tenant.name == tenant)


@pytest.mark.parametrize("order", ORDERS)
def test_each_call_is_answered_or_refused(order: str) -> None:
    calls = flood()
    result = run(calls, order)
    ended = [id(record.call) for record in result.records] + [id(one) for one, _ in result.refused]
    assert sorted(ended) == sorted(map(id, calls))
    assert {reason for _, reason in result.refused} <= {"expired", "late", "queue-full"}


def test_with_room_everywhere_nothing_changes() -> None:
    calls = flood(rate=4.0)
    held, at_once = run(calls, "fair-cost"), run(calls, "at-once")
    assert held.refused == []
    assert [(one.ttft, one.endpoint) for one in held.records] == [(one.ttft, one.endpoint) for one in at_once.records]


def test_a_light_tenant_hardly_waits_beside_a_greedy_one() -> None:
    calls = flood()
    held, first_come, at_once = (ttft(run(calls, way), "light") for way in ("fair-cost", "first-come", "at-once"))
    assert len(held) == 6
    assert held[-1] < 1.0
    assert held[-1] < at_once[-1] / 2
    assert len(first_come) < 6 or held[-1] < first_come[-1] / 2


def test_a_higher_band_goes_first() -> None:
    calls = [replace(one, band=1) if one.tenant.name == "greedy" and number % 10 == 0 else one
             for number, one in enumerate(flood())]  # fmt: skip
    result = run(calls, "first-come")
    urgent = sorted(record.ttft for record in result.records if record.call.band == 1)
    usual = sorted(record.ttft for record in result.records if record.call.band == 0)
    assert len(urgent) == sum(one.band for one in calls)
    assert quantile(urgent, 0.9) < quantile(usual, 0.5)


def test_the_policys_own_settings_of_the_queue_are_used() -> None:
    calls = flood()
    policy = with_queue(max_wait=0.5, per_tenant=5)
    world = World(policy, FLEET, block_size=16, seed=1)
    loop = Run(world, Calls(calls), 0.01, None)
    gate = HeldGate(world, loop.legs, policy=policy, order="fair-cost")
    loop.legs.gate = gate
    loop.scrape(1.0, Random(1))
    loop.come(calls)
    loop.go()
    reasons = Counter(reason for _, reason in loop.legs.refused)
    assert reasons["queue-full"] > 10
    assert gate.queue.waiting == 0
    assert not gate._flights
    assert not gate._entries
    for seat in world.seats:
        assert (seat.place.load.requests, seat.place.load.kv_tokens, seat.place.in_flight) == (0, 0, 0)
    assert gate.queue.served == pytest.approx(sum(seat.busy for seat in world.seats), rel=0.5)


def test_engines_that_fail_and_come_back_leave_nobody_behind() -> None:
    changes = (
        Change(1.0, 0, What.FAIL),
        Change(1.5, 1, What.FAIL),
        Change(3.0, 0, What.JOIN),
        Change(4.0, 1, What.JOIN),
    )
    calls = flood()
    result = run(calls, "fair-cost", replace(FLEET, schedule=changes))
    assert len(result.records) + len(result.refused) + len(result.lost) == len(calls)
    assert len(result.records) > len(calls) / 4
    late = [record for record in result.records if record.call.at > 4.5]
    assert {record.endpoint for record in late} == {0, 1}


def test_an_order_that_does_not_exist_is_named() -> None:
    world = World(load_policy("default"), FLEET, block_size=16, seed=1)
    with pytest.raises(ConfigError, match="fair-cots"):
        HeldGate(world, Run(world, Calls([]), 0.01, None).legs, policy=load_policy("default"), order="fair-cots")
