"""Figures of a run, and intervals that are what they say."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.objectives import Objectives, objectives
from gateway.commands.replay.statistics import (
    METRICS,
    best,
    difference,
    good,
    interval,
    quantile,
    student,
    summarise,
    tpot_of,
)
from gateway.commands.replay.workload import Record, Result, TraceCall
from gateway.framework import Kind
from gateway.framework.request import Slo
from gateway.proxy.serving.goodput import judge
from tests.commands.replay.runs import summary


def record(ttft: float, finished: float, output: int = 11, hit: int = 0, tokens: int = 100) -> Record:
    return Record(TraceCall(0.0, tokens, output, (1,)), 0, ttft, finished, hit, hit)


def result(*records: Record, busy: tuple[float, ...] = (1.0, 1.0)) -> Result:
    return Result("mine", 3, list(records), list(busy), 60.0, 2.0)


def test_a_run_s_figures() -> None:
    found = summarise(
        result(
            record(1.0, 1.4, hit=50),  # TPOT 40 ms: good
            record(1.99, 2.51, hit=25),  # 52 ms: not
            record(2.01, 2.11),  # later than 2 s: not
            record(0.5, 0.5, output=1, tokens=200),  # nothing after the first token: good
            busy=(3.0, 1.0),
        ),
        Objectives(),
    )
    values = found.values
    assert (found.policy, found.seed, found.requests, found.seconds, found.cpu_seconds) == ("mine", 3, 4, 60.0, 2.0)
    assert set(values) == set(METRICS) - {"lost", "retried", "split"}
    assert values["ttft_mean"] == pytest.approx(5.5 / 4)
    assert (values["ttft_p50"], values["ttft_p90"], values["ttft_p99"]) == (1.0, 2.01, 2.01)
    assert values["tpot_mean"] == pytest.approx((0.04 + 0.052 + 0.01) / 3)
    assert values["e2e_mean"] == pytest.approx((1.4 + 2.51 + 2.11 + 0.5) / 4)
    assert values["hit_rate"] == pytest.approx(75 / 500)
    assert values["goodput"] == 0.5
    assert values["busy_ratio"] == 1.5
    assert found.expected_share == 1.0


def test_a_run_without_hits_or_work_or_second_tokens() -> None:
    found = summarise(result(record(0.1, 0.1, output=1), busy=(0.0, 0.0)), Objectives())
    assert found.expected_share is None
    assert found.values["tpot_p99"] == 0.0
    assert found.values["busy_ratio"] == 1.0
    with pytest.raises(ValueError, match="says nothing"):
        summarise(result(), Objectives())


def test_what_is_lost_is_not_good_and_counts_as_a_request() -> None:
    one = result(record(1.0, 1.4), record(1.0, 1.4))
    found = summarise(replace(one, lost=[replace(one.records[0].call, traffic="")], scheduled=True), Objectives())
    assert found.requests == 3
    assert found.values["goodput"] == pytest.approx(2 / 3)
    assert (found.values["lost"], found.values["retried"]) == (pytest.approx(1 / 3), 0)


def test_goodput_counts_what_was_asked_for_of_each_class() -> None:
    slow, batch = record(3.0, 4.0), record(3.0, 4.0, hit=50)
    batch.call.traffic = "batch"
    asked = objectives(["ttft=1s", "batch:tpot=200ms"])
    found = summarise(result(slow, batch), asked)
    assert found.values["goodput"] == 0.5
    assert found.classes["batch"]["goodput"] == 1.0
    assert (found.classes["batch"]["requests"], found.classes["batch"]["hit_rate"]) == (1, 0.5)
    assert found.classes["batch"].keys() - {"requests"} == METRICS.keys() - {"busy_ratio", "lost", "retried", "split"}
    assert summarise(result(slow, slow), asked).classes == {}


@given(
    st.floats(0, 1e3), st.floats(0, 1e3), st.integers(1, 50), st.none() | st.floats(1e-3, 1e3),
    st.none() | st.floats(1e-3, 1e3),
)  # fmt: skip
def test_an_answer_is_judged_as_the_gateway_judges_it(ttft, more, output, asked_ttft, asked_tpot) -> None:
    slo = Slo(asked_ttft, asked_tpot)
    verdict = judge(
        slo,
        kind=Kind.CHAT,
        stream=True,
        status=200,
        outcome="ok",
        duration=ttft + more,
        ttft=ttft,
        output_tokens=output,
    )
    assert good(record(ttft, ttft + more, output), slo) == (verdict == "met")


def test_time_per_token_leaves_out_the_first() -> None:
    assert tpot_of(record(2.0, 3.0, output=11)) == pytest.approx(0.1)
    assert tpot_of(record(2.0, 2.0, output=1)) == 0.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(values, q) -> None:
    found = quantile(sorted(values), q)
    assert sum(value <= found for value in values) >= q * len(values) - 1e-6
    assert sum(value < found for value in values) < max(q * len(values), 1)


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, three values: 4.303 / sqrt(3).
    found = interval([1.0, 2.0, 3.0])
    assert (found.mid, found.low, found.high) == pytest.approx((2.0, 2 - 2.4843, 2 + 2.4843), abs=1e-3)
    assert interval([2.0]).low == -math.inf


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (10, 2.228), (30, 2.042), (40, 2.021), (60, 2.0), (120, 1.98)])
def test_student(freedom, t) -> None:
    assert student(freedom) == pytest.approx(t, abs=5e-4)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    chance = random.Random(1)
    held = 0
    for _ in range(2000):
        found = interval([chance.gauss(5.0, 2.0) for _ in range(4)])
        held += found.low <= 5.0 <= found.high
    assert 0.935 < held / 2000 < 0.965


def test_seeds_are_paired() -> None:
    # The seeds differ tenfold, the policies by a tenth: what is paired sees the tenth and nothing else.
    ours = [summary("a", seed, ttft_mean=1.1 * 10**seed) for seed in (1, 2, 3)]
    theirs = [summary("b", seed, ttft_mean=1.0 * 10**seed) for seed in (3, 1, 2, 4)]
    found = difference(METRICS["ttft_mean"], ours, theirs)
    assert (found.mid, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    with pytest.raises(ValueError, match="no seed"):
        difference(METRICS["ttft_mean"], ours, theirs[3:])


def test_shares_are_compared_in_points() -> None:
    ours = [summary("a", seed, goodput=0.5 + 0.1 * seed) for seed in (1, 2)]
    theirs = [summary("b", seed, goodput=0.45 + 0.1 * seed) for seed in (1, 2)]
    assert difference(METRICS["goodput"], ours, theirs).mid == pytest.approx(0.05)


def test_a_ratio_to_nothing_says_nothing() -> None:
    found = difference(METRICS["tpot_mean"], [summary(tpot_mean=0.0)], [summary(tpot_mean=0.1)])
    assert math.isnan(found.mid)


def test_the_best() -> None:
    by_policy = {
        "a": [summary("a", seed, goodput=0.70 + 0.01 * seed, ttft_mean=1.0) for seed in (1, 2, 3)],
        "b": [summary("b", seed, goodput=0.71 + 0.009 * seed, ttft_mean=1.1) for seed in (1, 2, 3)],
        "c": [summary("c", seed, goodput=0.80 + 0.01 * seed, ttft_mean=1.2) for seed in (1, 2, 3)],
    }
    assert best(METRICS["goodput"], by_policy) == "c"
    assert best(METRICS["ttft_mean"], by_policy) == "a"
