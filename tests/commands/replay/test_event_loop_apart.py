"""Prompts that are computed apart from their answers, in a replay: what is booked, what moves, what is given back."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from gateway.commands.replay.event_loop import Run, replay
from gateway.commands.replay.fleet import Kind, Link
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.workload import TraceCall
from gateway.commands.replay.world import World
from gateway.errors import ConfigError
from gateway.framework import Plan, Request, Role
from simulator.virtual.machine import MACHINES
from tests.commands.replay.test_event_loop import Calls, chats

MACHINE = replace(MACHINES["70b-tp4"], kv_tokens=60_000)
APART = (Kind(MACHINE, 1, Role.PREFILL), Kind(MACHINE, 2, Role.DECODE))
TOKEN = MACHINE.kv_bytes


def alone(link: Link, name: str = "prefill-decode-512") -> float:
    """The first token's time of one prompt of 10,000 tokens on idle engines."""
    call = TraceCall(0.0, 10_000, 20, tuple(range(100)))
    [record] = replay(Calls([call]), load_policy(name), Scene(fleet=APART, link=link), seed=1).records
    assert record.split == (name == "prefill-decode-512")
    return record.ttft


def test_moving_takes_the_link_s_time() -> None:
    near, far = Link(rate=1e12, latency=0.0), Link(rate=3e9, latency=0.5)
    assert alone(far) - alone(near) == pytest.approx(0.5 + 10_000 * TOKEN * (1 / 3e9 - 1 / 1e12))
    # On an idle pair it is one step more than on one engine alone.
    assert alone(near) - alone(near, "default") == pytest.approx(MACHINE.step, rel=0.3)


def test_transfers_of_one_engine_wait_for_each_other() -> None:
    """Two prompts that are computed in one step: their KV leaves one after the other."""
    calls = [TraceCall(0.0, 2000, 2, tuple(range(100 * each, 100 * each + 20))) for each in range(2)]
    link = Link(rate=2000 * TOKEN / 5.0, latency=0.0)
    result = replay(Calls(calls), load_policy("prefill-decode-512"), Scene(fleet=APART, link=link), seed=1)
    first, second = sorted(record.ttft for record in result.records)
    assert second - first == pytest.approx(5.0, rel=0.01)


def test_a_leg_that_cannot_be_simulated_is_an_error_that_names_it() -> None:
    calls = chats(1, 2.0)
    world = World(load_policy("default"), Scene(fleet=APART), block_size=100, seed=1)

    def schedule(request: Request, among, trace=None) -> Plan:
        encode, decode, *_ = among
        return Plan.of(decode, encode=encode)

    world.deciders[0].scheduler.schedule = schedule  # type: ignore[method-assign]
    run = Run(world, Calls(calls), 0.01, None)
    run.come(calls)
    with pytest.raises(ConfigError, match="planned the legs encode, decode, which a replay cannot send"):
        run.go()
    assert [seat.place.load.requests for seat in world.seats] == [0, 0, 0]


@pytest.mark.parametrize("name", ["prefill-decode", "prefill-decode-512"])
def test_all_is_given_back_and_the_rate_is_learned(name: str) -> None:
    calls = chats(200, 2.0)
    world = World(load_policy(name), Scene(fleet=APART, link=Link(rate=3e9)), block_size=100, seed=1)
    placed: list[Plan] = []
    schedule = world.deciders[0].scheduler.schedule

    def seen(request: Request, among, trace=None) -> Plan:
        placed.append(schedule(request, among, trace))
        return placed[-1]

    world.deciders[0].scheduler.schedule = seen  # type: ignore[method-assign]
    run = Run(world, Calls(calls), 0.01, None)
    for seat in world.seats:
        seat.scraped(0.0)
    run.come(calls)
    run.go()
    assert {id(record.call) for record in run.legs.records} == {id(call) for call in calls}
    split = [record for record in run.legs.records if record.split]
    assert len(split) == sum(plan.prefill is not None for plan in placed) > 50
    for seat in world.seats:
        load = seat.place.load
        assert (load.requests, load.kv_tokens, load.prefill_tokens) == (0, 0, 0)
        assert not seat.flights
        assert seat.engine.pool.free == seat.engine.pool.size
        seat.scraped(world.clock.now)
    decoders = world.seats[1:]
    transfers = [seat.place.metrics.transfers for seat in decoders]
    assert sum(each.count for each in transfers) == len(split)
    for each in transfers:
        assert each.bytes == each.tokens * TOKEN
        assert each.bytes / each.seconds < 3e9
    # The hits of a split request are those of the engine that computed it, which has the prefixes.
    assert fmean(record.hit_tokens / record.call.input_tokens for record in split[100:]) > 0.2
    assert sum(record.hit_tokens != record.expected_hit for record in split) < 0.1 * len(split)


def test_a_cell_apart_is_the_same_for_a_seed_and_counts_what_was_split() -> None:
    def run(seed: int) -> list[tuple[float, float, bool]]:
        result = replay(Calls(chats(100, 3.0)), load_policy("prefill-decode"), Scene(fleet=APART), seed=seed)
        assert result.apart
        return [(record.ttft, record.finished, record.split) for record in result.records]

    assert run(1) == run(1)


def test_nobody_decodes_on_an_engine_that_prefills() -> None:
    for name in ("default", "prefill-decode"):
        result = replay(Calls(chats(100, 3.0)), load_policy(name), Scene(fleet=APART), seed=1)
        assert {record.endpoint for record in result.records} <= {1, 2}
        assert name != "default" or not any(record.split for record in result.records)
