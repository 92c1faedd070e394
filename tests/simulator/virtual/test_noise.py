"""Noise has the mean and the spread that it says, step by step and in leaps, and stalls are steps of their own."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log
from random import Random
from statistics import fmean, stdev

import pytest

from simulator.virtual.engine import Engine
from simulator.virtual.job import Job
from simulator.virtual.machine import MACHINES
from simulator.virtual.noise import Disturbance, Noise

MACHINE = replace(MACHINES["70b-tp4"], step_request=0.0, kv_token=0.0)


def alone(noise: Noise, seed: int, output: int = 1, tokens: int = 1000) -> Job:
    """One request on an engine of its own."""
    engine = Engine(MACHINE, 512, Disturbance(noise, Random(seed)))
    job = Job((), tokens, output)
    engine.submit(job, 0.0)
    while engine.due < inf:
        engine.advance()
    return job


@pytest.mark.parametrize("steps", [1, 25])
def test_factors_have_a_mean_of_1_and_leaps_vary_less(steps: int) -> None:
    disturbance = Disturbance(Noise(step=0.4, prefill=0.8), Random(1))
    for prefill, spread in ((False, 0.4), (True, 0.8)):
        factors = [disturbance.factor(steps, prefill) for _ in range(20_000)]
        assert fmean(factors) == pytest.approx(1.0, abs=0.03)
        assert stdev(map(log, factors)) == pytest.approx(spread / steps**0.5, rel=0.03)


def test_stalls_are_the_share_of_steps_that_is_asked_for() -> None:
    disturbance = Disturbance(Noise(stalls=0.02, stall=30), Random(1))
    stalled = 0
    for _ in range(50_000):
        factor = disturbance.factor(1, False)
        assert factor in (1.0, 30.0)
        stalled += factor > 1
        disturbance.passed(1)
    assert stalled / 50_000 == pytest.approx(0.02, rel=0.1)


def test_prefill_and_decode_have_noise_of_their_own() -> None:
    quiet = alone(Noise(), 1, output=100)
    assert quiet.first_at is not None
    for noise, first_too in ((Noise(step=0.5), False), (Noise(prefill=0.5), True)):
        noisy = alone(noise, 1, output=100)
        assert noisy.first_at is not None
        assert (noisy.first_at != quiet.first_at) is first_too
        assert noisy.ended_at != quiet.ended_at


def test_a_stall_within_a_leap_hits_one_step() -> None:
    """The times at which tokens are there differ from an even pace at single steps only."""
    noise = Noise(stalls=0.05, stall=11)
    engine = Engine(MACHINE, 512, Disturbance(noise, Random(3)))
    job = Job((), 100, 400)
    engine.submit(job, 0.0)
    at, tokens, gaps = 0.0, 0, []
    last = None
    while engine.due < inf:
        due = engine.due
        while at < due:
            now = (job.offset + engine.decoded(at)) if job.offset is not None else 0
            if now > tokens:
                if last is not None and now == tokens + 1:
                    gaps.append(at - last)
                tokens, last = now, at
            at += MACHINE.step / 10
        engine.advance()
    stalled = [gap for gap in gaps if gap > 5 * MACHINE.step]
    assert 5 < len(stalled) < 45
    assert all(gap == pytest.approx(11 * MACHINE.step, rel=0.05) for gap in stalled)
    assert all(gap == pytest.approx(MACHINE.step, rel=0.25) for gap in gaps if gap < 5 * MACHINE.step)


def test_a_run_with_noise_takes_as_long_on_the_mean() -> None:
    quiet = alone(Noise(), 0, output=300)
    ends = [alone(Noise(step=0.3, prefill=0.3), seed, output=300).ended_at or 0.0 for seed in range(300)]
    assert fmean(ends) == pytest.approx(quiet.ended_at, rel=0.01)
    assert stdev(ends) > 0.005 * fmean(ends)


@pytest.mark.parametrize("name", ["step", "prefill", "stalls", "stall"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), 1e9])
def test_noise_is_checked(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Noise(**{name: value})


def test_nothing_is_no_noise() -> None:
    assert not Noise()
    assert not Noise(stall=20)
    assert Noise(stalls=0.1)
