from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load.wanted import (
    MOST_BUSY,
    Demand,
    batch,
    token_seconds,
    wait,
    wanted_for_answers,
    wanted_for_prompts,
    wanted_together,
)
from gateway.framework import Scalars
from gateway.framework.request import Slo
from tests.support.examples import examples

COSTS = Scalars(80e-6, 1.6e-9, 0.012, 20e-6, 60e-9, 0.02, 0.0, 0.0, 8192)
"""About those of a 70B model on four H100."""

SLO = Slo(ttft=2.0, tpot=0.05)
CAPACITY = 500_000.0

rates = st.floats(0.0, 200.0)
demands = st.builds(
    Demand,
    rate=rates,
    new=st.floats(1.0, 20_000.0),
    attention=st.floats(0.0, 1e8),
    output=st.floats(0.0, 2000.0),
    context=st.floats(1.0, 50_000.0),
    variation=st.floats(0.0, 5.0),
    backlog=st.floats(0.0, 100.0),
    running=st.floats(0.0, 1000.0),
)
objectives = st.builds(Slo, ttft=st.none() | st.floats(0.01, 60.0), tpot=st.none() | st.floats(0.001, 1.0))


def engines(demand: Demand, slo: Slo = SLO) -> tuple[int, int, int]:
    together = wanted_together(demand, COSTS, slo, CAPACITY)
    apart = wanted_for_prompts(demand, COSTS, slo), wanted_for_answers(demand, COSTS, slo, CAPACITY)
    return together.engines, apart[0].engines, apart[1].engines


def test_what_a_chat_needs() -> None:
    """10 requests/s of 2000 new tokens are 1.6 engines of prompts; 300 tokens each, at 21 us a token and the batch that
    50 ms allow, are about 1.5 of answers."""
    demand = Demand(10.0, 2000.0, 2000 * 1000.0, 300.0, 2500.0)
    prompts = wanted_for_prompts(demand, COSTS, SLO)
    assert prompts.prefill == pytest.approx(10 * (2000 * 80e-6 + 1.6e-9 * 2e6))
    assert prompts.engines == 2
    size = batch(COSTS, 2500.0, 0.05, 0.9 * CAPACITY)
    assert size == pytest.approx(min(0.038 / (20e-6 + 60e-9 * 2500), 0.9 * CAPACITY / 2500))
    answers = wanted_for_answers(demand, COSTS, SLO, CAPACITY)
    assert answers.decode == pytest.approx(10 * 300 * token_seconds(COSTS, 2500.0, size))
    assert answers.decode < answers.engines <= answers.decode + 2
    together = wanted_together(demand, COSTS, SLO, CAPACITY)
    assert together.engines >= together.prefill + together.decode


def test_nothing_asked_needs_nothing() -> None:
    assert engines(Demand(0.0, 100.0, 5000.0, 100.0, 200.0)) == (0, 0, 0)


def test_what_waits_alone_needs_engines() -> None:
    together, prompts, _ = engines(Demand(0.0, 100.0, 5000.0, 100.0, 200.0, backlog=120.0))
    assert together >= prompts >= 4


def test_what_runs_is_to_meet_its_objective_too() -> None:
    """Too few engines have let requests pile up: more than the rate would have in flight."""
    demand = Demand(0.0, 100.0, 5000.0, 100.0, 2500.0)
    size = batch(COSTS, 2500.0, 0.05, 0.9 * CAPACITY)
    piled = demand._replace(running=4 * size)
    assert wanted_for_answers(demand, COSTS, SLO, CAPACITY).decode == 0
    assert wanted_for_answers(piled, COSTS, SLO, CAPACITY).decode == pytest.approx(4)
    assert engines(piled)[0] >= 4
    assert engines(piled._replace(output=0.0)) == (0, 0, 0), "what generates nothing has no batch"


def test_an_objective_that_no_engine_meets_binds_nothing() -> None:
    demand = Demand(10.0, 2000.0, 2e6, 300.0, 2500.0)
    never = Slo(ttft=0.01, tpot=0.001)
    assert engines(demand, never) == engines(demand, Slo())


def test_an_embedding_needs_no_answers() -> None:
    demand = Demand(10.0, 2000.0, 2e6, 0.0, 0.0)
    assert wanted_for_answers(demand, COSTS, SLO, CAPACITY).engines == 0
    assert wanted_together(demand, COSTS, SLO, CAPACITY).engines == wanted_for_prompts(demand, COSTS, SLO).engines


@given(demands, objectives)
@examples(100)
def test_the_engines_carry_the_load(demand: Demand, slo: Slo) -> None:
    together = wanted_together(demand, COSTS, slo, CAPACITY)
    assert together.engines >= together.prefill + together.decode - 1e-9 or together.engines == 10_000
    prompts = wanted_for_prompts(demand, COSTS, slo)
    assert prompts.prefill <= MOST_BUSY * prompts.engines
    assert wanted_for_answers(demand, COSTS, slo, CAPACITY).engines >= 0


@given(demands, objectives, st.floats(1.0, 3.0))
@examples(100)
def test_more_requests_need_no_fewer_engines(demand: Demand, slo: Slo, factor: float) -> None:
    more = demand._replace(rate=demand.rate * factor)
    assert all(one <= other for one, other in zip(engines(demand, slo), engines(more, slo), strict=True))


@given(demands, st.floats(0.5, 60.0), st.floats(0.05, 1.0), st.floats(1.0, 5.0))
@examples(100)
def test_looser_objectives_need_no_more_engines(demand: Demand, ttft: float, tpot: float, factor: float) -> None:
    loose, tight = Slo(ttft * factor, tpot * factor), Slo(ttft, tpot)
    service = COSTS.prefill_token * demand.new + COSTS.prefill_quadratic * demand.attention
    if ttft <= service + COSTS.overhead or tpot < COSTS.step + COSTS.step_request + COSTS.kv_token * demand.context:
        return  # what is tight binds nothing
    assert wanted_for_prompts(demand, COSTS, loose).engines <= wanted_for_prompts(demand, COSTS, tight).engines
    decode = [wanted_for_answers(demand, COSTS, slo, CAPACITY).engines for slo in (loose, tight)]
    assert decode[0] <= decode[1]


@given(st.integers(1, 100), st.floats(0.01, 0.89), st.floats(0.01, 10.0), st.floats(0.0, 5.0))
@examples(100)
def test_the_wait_falls_with_engines_and_rises_with_load(
    count: int, used: float, service: float, variation: float
) -> None:
    one = wait(count, used * count, service, variation)
    assert 0 <= one < inf
    assert wait(count + 1, used * count, service, variation) <= one
    assert wait(count, min(used * 1.1, 0.9) * count, service, variation) >= one
