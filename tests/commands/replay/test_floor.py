"""What no number of engines can beat, held to the modelled engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.agents import Agents, AgentShape
from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.floor import demand, floors, seconds
from gateway.commands.replay.groups import Groups, Shape
from gateway.commands.replay.objectives import objectives
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.recording import Recording, Trace
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.sources import read
from gateway.commands.replay.workload import TraceCall
from simulator.virtual.engine import Engine, Job
from simulator.virtual.machine import MACHINES

MACHINE = MACHINES["70b-tp4"]
EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"


@given(st.integers(1, 100_000), st.integers(0, 6000), st.sampled_from(sorted(MACHINES)))
def test_it_is_what_an_engine_alone_takes(tokens, held_blocks, name) -> None:
    machine, size = MACHINES[name], 16
    engine = Engine(machine, size)
    blocks = tuple(range(-(-tokens // size)))
    held = min(held_blocks, (tokens - 1) // size)
    if held:
        engine.submit(Job(blocks[:held], held * size, 1), 0.0)
        while engine.due < float("inf"):
            engine.advance()
    begin = 10_000.0
    job = Job(blocks, tokens, 1)
    engine.submit(job, begin)
    while job.first_at is None:
        engine.advance()
    took, least = job.first_at - begin, seconds(machine, tokens, tokens - held * size)
    assert least <= took + 1e-9
    assert took <= 1.05 * least + 2 * machine.step


def test_nothing_in_a_fleet_is_faster() -> None:
    trace = Trace("excerpt", read(EXCERPT), rate=2.0, seed=1)
    [floor] = floors(trace, MACHINE, objectives(["ttft=2s"]))
    least = {one.call.at: one for one in floor.alone}
    found = replay(Trace("excerpt", read(EXCERPT), rate=2.0, seed=1), load_policy("default"), Scene(), seed=1)
    for record in found.records:
        one = least[record.call.at]
        assert one.ttft <= record.ttft + 1e-9
        if record.call.output_tokens > 1:
            assert one.tpot <= 1.01 * (record.finished - record.ttft) / (record.call.output_tokens - 1)


def test_what_was_there_before_is_not_computed_again() -> None:
    lines = [TraceCall(0.0, 1024, 5, (0, 1)), TraceCall(1.0, 1536, 5, (0, 1, 2)), TraceCall(2.0, 1024, 5, (0, 1))]
    [floor] = floors(Trace("it", Recording(lines, 512)), MACHINE, objectives(["ttft=2s"]))
    assert [one.new for one in floor.alone] == [1024, 512, 1]


def test_classes_have_floors_of_their_own() -> None:
    lines = [TraceCall(0.0, 60_000, 5, range(n, n + 1), traffic="batch" if n % 2 else "chat") for n in range(4)]
    trace = Recording([*lines, TraceCall(5.0, 100, 5, (9,))], 65_536)
    asked = objectives(["ttft=2s", "batch:ttft=60s"])
    found = {floor.traffic: floor.share for floor in floors(Trace("it", trace), MACHINE, asked)}
    assert found == {"": 0.6, "batch": 1.0, "chat": 0.0}
    assert [one.traffic for one in floors(Trace("it", trace), MACHINE, objectives(["batch:ttft=60s"]))] == ["batch"]
    assert floors(Trace("it", trace), MACHINE, objectives(["others:ttft=60s"])) == []


def test_a_closed_loop_is_followed_to_its_end() -> None:
    for workload, calls in (
        (Groups(Shape(groups=2, users=2, rounds=2, turns=3)), 24),
        (agents := Agents(AgentShape(sessions=3, live=1), seed=1), agents.requests),
    ):
        [floor] = floors(workload, MACHINE, objectives(["ttft=2s"]))
        assert len(floor.alone) == calls


def test_the_work_is_of_so_many_engines() -> None:
    """Within a factor of two of the smallest fleet that is not overloaded."""
    asked = objectives(["ttft=2s,tpot=60ms"])
    [floor] = floors(Trace("it", read(EXCERPT), rate=2.0, seed=1), MACHINE, asked)
    found = demand(floor.alone, MACHINE, asked)
    assert 0 < found.prefill_share < 1
    busy = {}
    for engines in (round(found.engines / 2) or 1, round(2 * found.engines)):
        scene = Scene(fleet=kinds(f"{engines} x 70b-tp4"))
        records = replay(Trace("it", read(EXCERPT), rate=2.0, seed=1), load_policy("default"), scene, seed=1).records
        busy[engines] = sum(record.ttft for record in records) / len(records)
    few, many = busy.values()
    assert few > 2 * many


def test_requests_that_come_at_once_are_no_load() -> None:
    asked = objectives(["ttft=2s"])
    [floor] = floors(Trace("it", Recording([TraceCall(0.0, 10, 5, (0,))], 16)), MACHINE, asked)
    assert demand(floor.alone, MACHINE, asked).engines == 0
    assert demand(floor.alone, MACHINE, asked).prefill_share == pytest.approx(0.5)
