"""A cell says what is run, and refuses what cannot be."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.groups import Shape
from gateway.commands.replay.scene import Cell, schedule
from gateway.commands.replay.sources import GeneratedSource, TraceSource
from gateway.errors import ConfigError

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"
TRACE = TraceSource(EXCERPT)


def test_the_load_is_that_of_all_endpoints() -> None:
    calls = Cell(TRACE, fleet=kinds("4 x 70b-tp4"), speed=0.5).workload(1).start()
    assert (len(calls) - 1) / calls[-1].at == pytest.approx(2.0)


def test_a_part_of_a_trace() -> None:
    assert len(TRACE.recording().lines) == 200
    assert len(TraceSource(EXCERPT, first=50).recording().lines) == 50
    part = TraceSource(EXCERPT, first=30, skip=20)
    assert [line.at for line in part.recording().lines] == [line.at for line in TRACE.recording().lines[20:50]]
    with pytest.raises(ConfigError, match="no more than 200 requests"):
        TraceSource(EXCERPT, skip=200).recording()


def test_groups() -> None:
    cell = Cell(GeneratedSource(Shape(groups=2, users=2, rounds=1, turns=3)), speed=0.5)
    assert len(cell.workload(1).start()) == 4


def test_its_name_says_it() -> None:
    assert Cell(TRACE, speed=0.45).name == "mooncake_conversation, 0.45 requests/s/endpoint, 8 x 70b-tp4"
    assert Cell(TraceSource(EXCERPT, title="chats"), speed=1.0).name.startswith("chats, 1.00")
    assert Cell(TRACE, fleet=kinds("2 x 8b-h100+host")).name == "mooncake_conversation, 2 x 8b-h100+host"
    mixed = Cell(TRACE, fleet=kinds("4 x 70b-tp4 + 2 x 8b-h100"), speed=0.3)
    assert mixed.name == "mooncake_conversation, 0.30 requests/s/endpoint, 4 x 70b-tp4 + 2 x 8b-h100"
    calls = mixed.workload(1).start()
    assert (len(calls) - 1) / calls[-1].at == pytest.approx(1.8)


def test_a_worker_process_can_be_given_one() -> None:
    cell = Cell(TRACE, speed=0.45)
    assert pickle.loads(pickle.dumps(cell)) == cell


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fleet": ()}, "endpoints must be at least 1"),
        ({"fleet": kinds("2 x 70b-tp4:prefill")}, "none may answer"),
        ({"schedule": schedule(["3:fail:8"])}, r"--change 3:fail:8: the endpoints are 0\.\.7"),
        ({"speed": 0.0}, "speed must be in"),
        ({"speed": 1e-320}, "speed must be in"),
        ({"speed": float("inf")}, "speed must be in"),
        ({"scrape": -1.0}, "scrape must be in"),
        ({"event_delay": -1.0}, "event-delay must be in"),
        ({"event_delay": float("nan")}, "event-delay must be in"),
        ({"cost_scale": 0.0}, "cost-scale must be in"),
        ({"cost_scale": 1e-320}, "cost-scale must be in"),
        ({"step_scale": 0.0}, "step-scale must be in"),
    ],
)
def test_cells_that_make_no_sense(wrong, said) -> None:
    with pytest.raises(ConfigError, match=said):
        Cell(TRACE, **wrong)
