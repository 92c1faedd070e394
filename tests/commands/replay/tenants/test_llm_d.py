"""llm-d's gate: what it dispatches between two scrapes, and in which order."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest

from gateway.commands.replay.legs import Legs
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.seat import Flight
from gateway.commands.replay.tenants import llm_d
from gateway.commands.replay.tenants.llm_d import DISPATCH, SCRAPE, LlmdGate, saturation
from gateway.commands.replay.world import Next, World
from gateway.core.prompt import Prompt
from gateway.framework import Kind, Request
from tests.commands.replay.tenants.scenes import FLEET, call, run


class Sends(Legs):
    """Notes what is sent and refused, and sends nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world, lambda call: None, scheduled=False)
        self.sent: list[tuple[float, str]] = []

    def send(self, flight: Flight) -> None:
        self.sent.append((self._world.clock.now, flight.call.tenant.name))


def made(round_robin: bool) -> tuple[World, Sends, LlmdGate]:
    world = World(load_policy("default"), FLEET, block_size=16, seed=1)
    legs = Sends(world)
    return world, legs, LlmdGate(world, legs, round_robin=round_robin)


def flight(world: World, number: int, tenant: str) -> Flight:
    one = call(number, 0.0, tenant)
    keys = world.index.keys(Prompt(array("I"), 0, True))
    return Flight(one, Request("1", world.model, Kind.CHAT, 0.0), keys, world.deciders[0])


def until(world: World, at: float) -> None:
    while world.agenda._queue and world.agenda._queue[0][0] <= at:
        now, what, of = world.agenda.pop()
        assert what is Next.GATE
        world.clock.now = now
        of(now)
    world.clock.now = at


@pytest.mark.parametrize("round_robin", [False, True])
def test_one_is_dispatched_at_each_arrival_and_each_millisecond(round_robin: bool) -> None:
    world, legs, gate = made(round_robin)
    until(world, 0.01)
    for number in range(3):
        gate.arrive(flight(world, number, "a"))
    assert len(legs.sent) == 3
    world.clock.now += 0.01
    gate._saturation = 1.0
    for number in range(4):
        gate.arrive(flight(world, number, "a"))
    assert len(legs.sent) == 3
    gate._saturation = 0.0
    gate._tick_later()
    until(world, world.clock.now + 2.5 * DISPATCH)
    assert len(legs.sent) == 5


def test_tenants_in_turn_or_who_came_first() -> None:
    for round_robin, order in ((True, "abaaa"), (False, "aaaab")):
        world, legs, gate = made(round_robin)
        gate._saturation = 1.0
        for number, tenant in enumerate("aaaab"):
            gate.arrive(flight(world, number, tenant))
        assert legs.sent == []
        until(world, SCRAPE)  # the first scrape finds idle engines
        assert "".join(tenant for _, tenant in legs.sent) == order


def test_who_waits_too_long_or_beside_too_many_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(llm_d, "MOST", 2)
    monkeypatch.setattr(llm_d, "saturation", lambda seats: 1.0)
    world, legs, gate = made(round_robin=True)
    until(world, 0.0)
    for number in range(3):
        gate.arrive(flight(world, number, "a"))
    assert [reason for _, reason in legs.refused] == ["queue-full"]
    world.clock.now = llm_d.TTL + 1
    monkeypatch.setattr(llm_d, "saturation", lambda seats: 0.0)
    gate._dispatch()
    assert Counter(reason for _, reason in legs.refused) == {"queue-full": 1, "expired": 2}
    assert legs.sent == []


def test_saturation_is_the_mean_over_engines_of_the_larger_of_queue_and_memory() -> None:
    world, _, _ = made(round_robin=True)
    assert saturation(world.seats) == 0
    first = world.seats[0].engine
    first.waiting.extend([None] * 5)  # type: ignore[list-item]  # only their number matters
    assert saturation(world.seats) == pytest.approx(0.5)


def test_all_are_answered_in_a_run() -> None:
    calls = [call(number, number * 0.02, "ab"[number % 2]) for number in range(200)]
    for way in ("llm-d-first-come", "llm-d-round-robin"):
        result = run(calls, way)
        assert len(result.records) == 200
        assert result.refused == []
