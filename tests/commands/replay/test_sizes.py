"""The search for a size, on curves of one's choice."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.fleet import Kind, Kinds, count
from gateway.commands.replay.sizes import LITTLE, Sized, Trial, Verdict, best_of, judge, smallest
from gateway.commands.replay.statistics import METRICS, Summary, mean
from simulator.virtual.machine import MACHINES
from tests.commands.replay.runs import summary

MACHINE = MACHINES["70b-tp4"]


class Curve:
    """Stands where runs would: a share by the number of engines and the seed."""

    def __init__(self, share: Callable[[int, int], float]) -> None:
        self.share = share
        self.runs: list[tuple[int, int]] = []

    def replay(self, fleet: Kinds, seeds: range) -> list[Summary]:
        self.runs += [(count(fleet), seed) for seed in seeds]
        return [summary(seed=seed, goodput=self.share(count(fleet), seed)) for seed in seeds]


def search(curve: Curve, *, first: int = 1, most: int = 256, asked: float = 0.99, seeds: int = 3) -> Sized:
    trial = judge(curve.replay, lambda one: one.values["goodput"], asked=asked, seeds=seeds)

    def best(engines: int) -> Trial:
        return trial((Kind(MACHINE, engines),))

    return smallest(best, first=first, least=1, most=most)


@given(st.integers(1, 256), st.integers(0, 400))
def test_the_smallest_that_does_is_found(needed, first) -> None:
    curve = Curve(lambda engines, seed: 0.995 if engines >= needed else 0.9 * engines / needed)
    found = search(curve, first=first)
    assert found.smallest is not None
    assert found.smallest.engines == needed
    assert found.sure is found.smallest
    assert needed == 1 or found.trials[needed - 1].verdict is Verdict.NO
    # 2 x log2(256), each size once.
    assert len(found.trials) <= 18
    assert len(curve.runs) == len(set(curve.runs)) == 3 * len(found.trials)


def test_no_size_will_do() -> None:
    found = search(Curve(lambda engines, seed: 0.5 + 0.003 * engines), most=100)
    assert found.smallest is None
    assert not found.helpless
    assert max(found.trials) == 100


def test_more_engines_are_no_help() -> None:
    found = search(Curve(lambda engines, seed: 0.9 * (1 - 1 / engines**2)), most=4096)
    assert found.smallest is None
    assert found.helpless
    assert max(found.trials) < 256


def test_an_overloaded_fleet_may_answer_none_with_twice_the_engines() -> None:
    found = search(Curve(lambda engines, seed: 0.0 if engines < 30 else 1.0))
    assert found.smallest is not None
    assert found.smallest.engines == 30


def test_where_seeds_do_not_tell_more_are_run() -> None:
    chance = Random(1)
    curve = Curve(lambda engines, seed: 0.98 + 0.001 * engines + chance.gauss(0, 0.004))
    found = search(curve, first=8, most=32)
    assert found.smallest is not None
    assert any(len(trial.shares) == 9 for trial in found.trials.values())
    assert all(len(trial.shares) in (3, 6, 9) for trial in found.trials.values())
    if found.sure is not None:
        assert found.sure.engines >= found.smallest.engines


@given(st.integers(1, 30), st.integers(-5, 40), st.booleans())
def test_the_best_layout_is_climbed_to(top, first, overloaded) -> None:
    """Where none of them answers in time, by how long they wait."""
    tried = set()

    def trial(layout: int) -> Trial:
        tried.add(layout)
        off = abs(layout - top)
        share = 0.0 if overloaded else 1.0 - off / 100
        return Trial((Kind(MACHINE),), [share], 0.99, [summary(ttft_mean=1.0 + off)])

    best_of(trial, first=first, least=1, most=30)
    found = best_of(trial, first=first, least=1, most=30)
    assert mean(METRICS["ttft_mean"], found.summaries) == 1.0
    assert tried <= set(range(1, 31))
    assert len(tried) <= abs(min(max(first, 1), 30) - top) + 3


def test_the_verdict_is_of_the_interval() -> None:
    def verdict(*shares: float) -> Verdict:
        return Trial((Kind(MACHINE),), shares, 0.99, [summary()]).verdict

    assert verdict(0.999, 0.999, 0.998) is Verdict.YES
    assert verdict(0.90, 0.91, 0.90) is Verdict.NO
    assert verdict(0.98, 1.0, 0.99) is Verdict.OPEN
    assert verdict(1.0) is Verdict.OPEN
    assert LITTLE < 0.01
