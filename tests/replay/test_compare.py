"""Runs side by side are the runs one after the other; a run that fails ends all."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.replay.cell import Cell, GroupsSource, TraceSource
from gateway.replay.compare import Job, run
from gateway.replay.groups import Shape
from gateway.replay.policies import policy
from gateway.replay.statistics import Summary

EXCERPT = Path(__file__).parents[1] / "data" / "replay" / "mooncake_conversation.jsonl"
CELL = Cell(TraceSource(EXCERPT, first=60), endpoints=2, speed=0.5)
JOBS = [Job(CELL, policy(name), seed) for name in ("default", "round-robin") for seed in (1, 2)]


class Seen:
    def __init__(self) -> None:
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
    expected = run(JOBS, watcher=alone)
    assert without_time(run(JOBS, processes=2, watcher=beside)) == without_time(expected)
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
    one, other, robin, _ = (summary.values for summary in run(JOBS))
    assert one != other
    assert one != robin


@pytest.mark.parametrize("processes", [1, 2])
def test_what_a_run_raises_is_raised_and_nothing_is_left(processes) -> None:
    # A prompt that no engine's memory can hold.
    too_long = Cell(GroupsSource(Shape(groups=1, users=1, rounds=1, own=1_000_000)), endpoints=1, speed=1.0)
    with pytest.raises(ConfigError):
        run([Job(too_long, policy("default"), 1), *JOBS], processes=processes)
    assert multiprocessing.active_children() == []
