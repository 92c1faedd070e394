"""Engines that fail, leave and join in a replay: who is answered, who is not, and that nothing stays booked."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.event_loop import Run, replay
from gateway.commands.replay.fleet import Kind, Kinds
from gateway.commands.replay.groups import Groups, Shape
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.scene import Scene, schedule
from gateway.commands.replay.workload import TraceCall
from gateway.commands.replay.world import World
from gateway.errors import ConfigError
from gateway.framework import Role
from simulator.virtual.machine import MACHINES
from tests.commands.replay.test_event_loop import Calls, chats
from tests.support.examples import examples

MACHINE = replace(MACHINES["70b-tp4"], kv_tokens=60_000)
THREE = (Kind(MACHINE, 3),)
APART = (Kind(MACHINE, 2, Role.PREFILL), Kind(MACHINE, 2, Role.DECODE))


def ran(changes: list[str], calls: list[TraceCall], fleet: Kinds = THREE, name: str = "default") -> tuple[World, Run]:
    """A run to its end, after which nothing is booked any more."""
    scene = Scene(fleet=fleet, schedule=schedule(changes))
    world = World(load_policy(name), scene, block_size=100, seed=1)
    run = Run(world, Calls(calls), 0.01, None, scene.schedule)
    run.come(calls)
    run.go()
    for seat in world.seats:
        load = seat.place.load
        assert (load.requests, load.kv_tokens, load.prefill_tokens) == (0, 0, 0)
        assert not seat.flights
    answered = [id(record.call) for record in run.legs.records]
    assert sorted([*answered, *map(id, run.legs.lost)]) == sorted(map(id, calls))
    return world, run


def test_an_engine_that_fails_loses_what_it_had_begun_and_no_more() -> None:
    calls = chats(300, 6.0)
    _, quiet = ran([], calls)
    _, run = ran(["20:fail:1"], calls)
    there = [one for one in quiet.legs.records if one.endpoint == 1 and one.call.at < 20 < one.call.at + one.finished]
    streaming = {id(one.call) for one in there if one.call.at + one.ttft < 20}
    assert {id(call) for call in run.legs.lost} == streaming
    assert streaming
    assert run.legs.retried == len(there) - len(streaming) > 0
    assert not [one for one in run.legs.records if one.endpoint == 1 and one.call.at > 20]


def test_a_request_may_die_with_one_engine_and_not_with_two() -> None:
    slow = TraceCall(1.0, 30_000, 5, tuple(range(300)))
    world, run = ran(["2:fail:0", "2:fail:1"], [slow], fleet=(Kind(MACHINE, 3),))
    assert (len(run.legs.records), run.legs.retried) == (1, 1)
    [first] = [seat for seat in world.seats if seat.busy > 0 and seat.place.engine.up]
    assert run.legs.records[0].endpoint == world.seats.index(first)
    _, run = ran(["2:fail:0", "3:fail:1", "4:fail:2"], [slow])
    assert (run.legs.lost, run.legs.retried) == ([slow], 1)


def test_one_that_leaves_ends_what_it_has() -> None:
    _, run = ran(["20:leave:1"], chats(300, 6.0))
    assert not run.legs.lost
    assert run.legs.retried == 0
    mine = [record for record in run.legs.records if record.endpoint == 1]
    assert max(record.call.at for record in mine) < 20 < max(record.call.at + record.finished for record in mine)


def test_one_that_joins_is_there_from_then_on() -> None:
    _, run = ran(["20:join:1"], chats(300, 6.0))
    assert min(record.call.at for record in run.legs.records if record.endpoint == 1) > 20
    assert not run.legs.lost


def test_one_that_comes_back_holds_nothing_and_is_warmed_up() -> None:
    calls = chats(300, 6.0)
    world, run = ran(["20:fail:1", "20.5:join:1"], calls)
    back = sorted(
        (one for one in run.legs.records if one.endpoint == 1 and one.call.at > 20), key=lambda one: one.call.at
    )
    assert back[0].hit_tokens == back[0].expected_hit == 0
    assert any(record.hit_tokens for record in back)
    others = [one for one in run.legs.records if one.endpoint == 0]
    assert sum(20.5 < one.call.at < 25 for one in back) < sum(20.5 < one.call.at < 25 for one in others)
    assert world.endpoints[1].warmth == 1.0


def test_a_prompt_whose_engine_fails_is_computed_by_the_one_of_its_answer() -> None:
    calls = chats(200, 12.0)
    _, run = ran(["6:fail:0", "10:fail:1"], calls, fleet=APART, name="prefill-decode-512")
    assert not run.legs.lost
    assert run.legs.retried > 0
    assert any(record.split for record in run.legs.records)
    assert not [record for record in run.legs.records if record.split and record.call.at > 10]


def test_an_answer_whose_engine_fails_is_given_by_another() -> None:
    calls = chats(200, 12.0)
    _, quiet = ran([], calls, fleet=APART, name="prefill-decode-512")
    waits = next(one for one in quiet.legs.records if one.endpoint == 2 and one.call.at > 6)
    at = waits.call.at + waits.ttft / 2
    world, run = ran([f"{at:.6f}:fail:2"], calls, fleet=APART, name="prefill-decode-512")
    assert run.legs.retried > 0
    assert 0 < len(run.legs.lost) < 100
    assert all(seat.engine.pool.free == seat.engine.pool.size for seat in world.seats)


def test_where_nobody_is_left_all_is_lost_and_that_is_said() -> None:
    calls = chats(20, 4.0)
    scene = Scene(fleet=(Kind(MACHINE, 1),), schedule=schedule(["0:fail:0"]))
    with pytest.raises(ConfigError, match="all 20 calls were lost: no engine"):
        replay(Calls(calls), load_policy("default"), scene, seed=1)


def test_a_closed_loop_goes_on_after_what_was_lost() -> None:
    shape = Shape(groups=2, users=2, rounds=3, turns=2, shared=600, own=400, output=200, think=2.0)
    scene = Scene(fleet=(Kind(MACHINE, 2),), schedule=schedule(["6:fail:0", "9:join:0"]))
    results = [replay(Groups(shape, seed=1), load_policy("default"), scene, seed=1) for _ in range(2)]
    assert len(results[0].records) + len(results[0].lost) == shape.requests
    assert [one.finished for one in results[0].records] == [one.finished for one in results[1].records]


@examples(30)
@given(st.integers(0, 2**32), st.sampled_from(["prefill-decode", "prefill-decode-512", "default", "random"]))
def test_whatever_comes_and_goes_all_calls_end_and_all_is_given_back(seed: int, name: str) -> None:
    random = Random(seed)
    there, at, changes = dict.fromkeys(range(4), True), 0.0, []
    for _ in range(random.randrange(1, 12)):
        at += random.expovariate(1.0)
        endpoint = random.randrange(1, 4)  # the first one, which may do all, is always there
        what = random.choice(["fail", "leave"]) if there[endpoint] else "join"
        there[endpoint] = what == "join"
        changes.append(f"{at:.3f}:{what}:{endpoint}")
    machine = replace(MACHINE, host_tokens=random.choice([0, 100_000]), fetch_token=1.6e-6)
    fleet = (Kind(machine, 1), Kind(machine, 1, Role.PREFILL), Kind(machine, 2, Role.DECODE))
    ran(changes, chats(60, random.choice([3.0, 12.0]), seed), fleet, name)
