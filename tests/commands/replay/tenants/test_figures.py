"""The figures of runs, of records whose figures are known."""

from __future__ import annotations

import pytest

from gateway.commands.replay.objectives import Objectives
from gateway.commands.replay.tenants.figures import ALL, LIGHT, Outcome, engine_seconds, groups_of
from gateway.commands.replay.tenants.scenes import WARM_UP
from gateway.commands.replay.workload import Record, Result
from gateway.framework.request import Slo
from simulator.virtual.machine import MACHINES
from tests.commands.replay.tenants.scenes import call

MACHINE = MACHINES["8b-h100"]
OBJECTIVES = Objectives(Slo(2.0, 0.15))


def record(number: int, at: float, tenant: str, ttft: float, finished: float, hit: int = 0) -> Record:
    return Record(call(number, at, tenant, output=11), 0, ttft, finished, hit, hit)


def result(*records: Record, **more) -> Result:
    return Result("default", 1, list(records), [100.0], 100.0, 1.0, **more)


def test_of_all_of_the_light_ones_and_of_each() -> None:
    found = groups_of(
        result(
            record(1, WARM_UP, "a", 1.0, 2.0, hit=1000),
            record(2, WARM_UP + 1, "a", 3.0, 4.0),  # late
            record(3, WARM_UP + 2, "b", 1.0, 3.0),  # too slow
            record(4, WARM_UP - 1, "b", 1.0, 2.0),  # in the warm-up, but it ends later
            record(5, WARM_UP + 9, "b", 1.0, 2.0),  # ends when the last have come
            refused=[(call(6, WARM_UP, "a"), "late"), (call(7, 0.0, "b"), "late")],
        ),
        {"a"},
        OBJECTIVES,
        [MACHINE],
        10.0,
    )
    assert set(found) == {ALL, LIGHT, "a", "b"}
    assert found["a"] == found[LIGHT]
    assert found["a"] | {"engine_share": 0} == pytest.approx(
        {
            "requests": 3,
            "ttft_p50": 1.0,
            "ttft_p99": 3.0,
            "tpot_p99": 0.1,
            "good": 1 / 3,
            "good_rate": 0.1,
            "served_rate": 0.2,
            "hit_rate": 0.25,
            "refused": 1 / 3,
            "engine_share": 0,
        }
    )
    assert found["b"]["good"] == 0.5
    assert found["b"]["served_rate"] == 0.2
    assert found["b"]["refused"] == 0
    assert found[ALL]["requests"] == 5
    assert found[ALL]["engine_share"] == 1


def test_lost_calls_are_not_good() -> None:
    found = groups_of(
        result(record(1, WARM_UP, "a", 1.0, 2.0), lost=[call(2, WARM_UP, "a")]), {"a"}, OBJECTIVES, [MACHINE], 10.0
    )
    assert found["a"]["good"] == 0.5


def test_engine_time_is_the_prompts_and_the_tokens_and_what_is_left_by_tokens() -> None:
    long, cached = record(1, 0.0, "a", 1.0, 2.0), record(2, 0.0, "b", 1.0, 2.0, hit=1984)
    spent = engine_seconds([long, cached], [MACHINE], 50.0)
    assert sum(spent.values()) == pytest.approx(50)
    assert spent["a"] - spent["b"] == pytest.approx(
        2000 * (MACHINE.prefill_token + MACHINE.prefill_quadratic * 1000)
        - 16 * (MACHINE.prefill_token + MACHINE.prefill_quadratic * 1992)
    )


def test_a_run_in_a_few_words() -> None:
    values = {"ttft_p50": 0.25, "ttft_p99": 1.5, "good": 0.9, "good_rate": 12.0}
    outcome = Outcome("small", "at-once", 1.2, 12.0, 20.0, 1, 3.4, {ALL: values, LIGHT: values})
    assert outcome.line == (
        "small, 1.2 times, at-once, seed 1: light TTFT p50 0.25 s, p99 1.50 s, goodput 90.0%; all 12.0/s good, "
        "took 3.4 s"
    )
