"""Runs side by side are the runs one after the other; a run that fails ends all."""

from __future__ import annotations

import dataclasses
import multiprocessing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gateway.commands.processes import START_SECONDS, Processes, group_members
from gateway.commands.replay.compare import Job, Ticker, run
from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.groups import Shape
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.sources import GeneratedSource, TraceSource
from gateway.commands.replay.statistics import Summary
from gateway.errors import ConfigError
from tests.support.processes import KVGATE
from tests.support.wait import eventually

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"
CELL = Cell(TraceSource(EXCERPT, first=60), fleet=kinds("2 x 70b-tp4"), speed=0.5)
JOBS = [Job(CELL, load_policy(name), seed) for name in ("default", "round-robin") for seed in (1, 2)]


class Seen(Ticker):
    def __init__(self) -> None:
        super().__init__(Console(file=StringIO()), "runs", len(JOBS) + 1)
        self.shares: dict[int, list[float]] = {}
        self.ended: list[int] = []

    def moved(self, job: int, share: float) -> None:
        self.shares.setdefault(job, []).append(share)

    def done(self, job: int, summary: Summary) -> None:
        self.ended.append(job)


def without_time(summaries: list[Summary]) -> list[Summary]:
    return [dataclasses.replace(one, cpu_seconds=0.0) for one in summaries]


def test_processes_give_what_one_gives_in_the_jobs_order() -> None:
    alone, beside = Seen(), Seen()
    expected = run(JOBS, alone)
    assert without_time(run(JOBS, beside, processes=2)) == without_time(expected)
    assert [(one.policy, one.seed) for one in expected] == [
        ("default", 1), ("default", 2), ("round-robin", 1), ("round-robin", 2),
    ]  # fmt: skip
    assert all(one.requests == 60 for one in expected)
    assert alone.ended == [0, 1, 2, 3]
    assert sorted(beside.ended) == [0, 1, 2, 3]
    for shares in alone.shares.values():
        assert shares == sorted(shares)
        assert 0 < shares[0] <= shares[-1] <= 1


def test_a_seed_changes_the_run_and_a_policy_too() -> None:
    one, other, robin, _ = (summary.values for summary in run(JOBS, Seen()))
    assert one != other
    assert one != robin


@pytest.mark.parametrize("processes", [1, 2])
def test_what_a_run_raises_is_raised_and_nothing_is_left(processes) -> None:
    # A prompt that no engine's memory can hold.
    too_long = Cell(
        GeneratedSource(Shape(groups=1, users=1, rounds=1, own=1_000_000)), fleet=kinds("70b-tp4"), speed=1.0
    )
    with pytest.raises(ConfigError):
        run([Job(too_long, load_policy("default"), 1), *JOBS], Seen(), processes=processes)
    assert multiprocessing.active_children() == []


async def test_workers_end_with_a_parent_that_is_killed(processes: Processes) -> None:
    words = ("replay", "groups", "--rounds", "50", "--speed", "2", "--policies", "default,random", "--jobs", "2")
    parent = processes.start("replay", [*KVGATE, *words])

    def together() -> int:
        return sum(1 for _ in group_members(parent.pid))

    # With it and the tracker of its semaphores.
    await eventually(lambda: together() >= 4, f"its workers run: {parent.tail()}", within=START_SECONDS)
    parent.child.kill()  # it alone
    await eventually(lambda: together() == 0, "nobody is left", within=START_SECONDS)
