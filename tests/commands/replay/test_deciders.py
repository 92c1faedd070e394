"""Covers: gateway/commands/replay/deciders.py, gateway/commands/replay/pairs.py.

Several gateways before the same engines, which hear each other's bookings after a delay.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from gateway.cli import EXIT_CONFIG, main
from gateway.commands.replay.command import cell, delay
from gateway.commands.replay.event_loop import Run, replay
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.world import Next, World
from gateway.errors import ConfigError
from tests.commands.replay.test_event_loop import Calls, chats, scene

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"


def world_of(workload: Calls, seconds: float) -> World:
    on = scene(3, deciders=4, delay=seconds)
    return World(load_policy("default"), on, block_size=workload.block_size, seed=1)


def test_each_gateway_decides_by_the_bookings_of_all_and_in_the_end_nothing_is_booked() -> None:
    workload = Calls(chats(300, 12.0))
    world = world_of(workload, 0.0)
    run, seen = Run(world, workload, 0.05, None), dict.fromkeys(world.deciders, 0)
    for decider in world.deciders:
        schedule = decider.scheduler.schedule

        def watched(request, among, trace=None, schedule=schedule, decider=decider):
            for seat, place in zip(world.seats, decider.places, strict=True):
                flights = {id(flight): flight for flight in seat.flights.values()}.values()
                assert place.load.requests == len(flights)
                waiting = [each for each in flights if each.job.first_at is None]
                assert place.load.prefill_tokens == sum(each.placement.decode.new_tokens for each in waiting)
            seen[decider] += 1
            return schedule(request, among, trace)

        decider.scheduler.schedule = watched  # type: ignore[method-assign]
    run.scrape(1.0, Random(1))
    run.come(workload.start())
    run.go()
    assert set(seen.values()) == {75}  # in turn
    for decider in world.deciders:
        for place in decider.places:
            load = place.load
            assert (load.requests, load.prefill_tokens, load.kv_tokens, load.prefill_attention) == (0, 0, 0, 0.0)
            assert load.foreign_requests < 0.01


def test_what_one_has_booked_the_others_know_after_the_delay() -> None:
    workload = Calls([*chats(1, 1.0)])
    world = world_of(workload, 0.25)
    run = Run(world, workload, 0.05, None)
    run.come(workload.start())
    known: list[tuple[float, list[int]]] = []
    tell = world.exchange.tell

    def told(rows):
        tell(rows)
        known.append((world.clock.now, [max(p.load.requests for p in each.places) for each in world.deciders]))

    world.exchange.tell = told  # type: ignore[method-assign]
    run.go()
    [call] = workload.calls
    assert known[0] == (call.at + 0.25, [1, 1, 1, 1])
    while world.agenda._queue:  # rows that were on their way when the call had ended
        _, what, of = world.agenda.pop()
        if what is Next.ROWS:
            world.exchange.tell(of)
    assert known[-1][1] == [0, 0, 0, 0]


@pytest.mark.parametrize("change", ["", "4:fail:1", "4:leave:1"])
def test_every_call_is_answered_by_one_of_the_gateways(change: str) -> None:
    options = {"workload": str(EXCERPT), "first": 60, "endpoints": "3", "speed": 0.5, "deciders": 3, "delay": "3ms"}
    asked = cell(options | ({"change": [change]} if change else {}))
    result = replay(asked.workload(1), load_policy("default"), asked, seed=1)
    assert result.policy == "default, 3 deciders"
    assert len(result.records) + len(result.lost) == 60
    assert len(result.records) >= 50
    assert asked.name.endswith("bookings of others known after 3 ms")


def test_a_comparison_has_each_policy_with_one_gateway_and_with_several(tmp_path, capsys) -> None:
    found = tmp_path / "found.json"
    words = [str(EXCERPT), "--first", "30", "--endpoints", "2", "--seeds", "1", "--jobs", "1", "--policies", "default"]
    assert main(["replay", *words, "--deciders", "2", "--delay", "0.1s", "--json", str(found)]) == 0
    assert "default, 2 deciders" in capsys.readouterr().out
    [one] = json.loads(found.read_text())["cells"]
    assert list(one["summaries"]) == ["default", "default, 2 deciders"]
    assert (one["settings"]["deciders"], one["settings"]["delay"]) == (2, 0.1)


def test_options_that_mean_nothing_are_refused(capsys) -> None:
    assert (delay("3ms"), delay("0.1s"), delay(" 0s ")) == (0.003, 0.1, 0.0)
    with pytest.raises(ConfigError, match="--delay: '3' must be a time"):
        delay("3")
    with pytest.raises(ConfigError, match="deciders must be in"):
        cell({"workload": "groups", "deciders": 0})
    assert main(["replay", "--tenants", "all", "--deciders", "2"]) == EXIT_CONFIG
    assert "leave out --deciders" in capsys.readouterr().err
