"""The engine in virtual time against ``simulator.engine``, stepped one by one, and against queueing theory."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.virtual.engine import Engine, Job
from simulator.virtual.machine import MACHINES, Machine
from simulator.virtual.pool import Stored
from tests.simulator.virtual.naive import Ask, Run, Served, names, step_through

SMALL = Machine(
    name="small",
    prefill_token=3e-4,
    prefill_quadratic=2e-6,
    step=0.01,
    step_request=1e-3,
    kv_token=3e-6,
    kv_tokens=40 * 8,
    max_batched_tokens=64,
    max_num_seqs=6,
)
BLOCK = 8


def leap(machine: Machine, block_size: int, asks: list[Ask]) -> Run:
    """As ``step_through``, by the engine in virtual time."""
    ids: dict[bytes, int] = {}
    engine = Engine(machine, block_size)
    jobs = [
        Job(
            ids=tuple(ids.setdefault(name, len(ids)) for name in names(ask, block_size)),
            input_tokens=len(ask.prompt),
            output_tokens=len(ask.answer),
        )
        for ask in asks
    ]
    run = Run([], 0.0, 0, 0)
    named = {number: name for name, number in ids.items()}
    coming = list(zip(asks, jobs, strict=True))
    while coming or engine.due < inf:
        if coming and coming[0][0].at <= engine.due:
            ask, job = coming.pop(0)
            engine.submit(job, ask.at)
        else:
            engine.advance()
        for at, events in engine.news():
            for event in events:
                what = "stored" if isinstance(event, Stored) else "removed"
                run.said += [(at, what, named[each]) for each in event.ids]
    run.served = [
        Served(job.began_at or 0.0, job.first_at or 0.0, job.ended_at or 0.0, job.hit_tokens, job.preemptions)
        for job in jobs
    ]
    run.busy, run.queries, run.hits = engine.busy, engine.queries, engine.hits
    run.held = {named[each] for each in engine.pool.held}
    assert engine.pool.free == engine.pool.size
    return run


def conversations(random: Random, count: int, rate: float, longest: int = 150, answer: int = 60) -> list[Ask]:
    """Requests that share beginnings: each may go on from what one before it said, or from the half of it."""
    asks: list[Ask] = []
    at = 0.0
    for _ in range(count):
        at += random.expovariate(rate)
        before = random.choice(asks) if asks and random.random() < 0.6 else None
        start = before.prompt + before.answer if before else ()
        start = start[: random.randrange(len(start) + 1)] if random.random() < 0.3 else start
        new = tuple(random.randrange(1, 50) for _ in range(random.randrange(1, 60)))
        prompt = (start + new)[-longest:] if len(start) + len(new) > longest else start + new
        asks.append(Ask(at, prompt, tuple(random.randrange(1, 50) for _ in range(random.randrange(1, answer)))))
    return asks


def same(one: Run, other: Run) -> None:
    for a, b in zip(one.served, other.served, strict=True):
        assert (a.began, a.first, a.ended) == pytest.approx((b.began, b.first, b.ended), abs=1e-6)
        assert (a.hit, a.preemptions) == (b.hit, b.preemptions)
    assert one.busy == pytest.approx(other.busy)
    assert (one.queries, one.hits, one.held) == (other.queries, other.hits, other.held)
    assert [said[1:] for said in one.said] == [said[1:] for said in other.said]
    assert [said[0] for said in one.said] == pytest.approx([said[0] for said in other.said], abs=1e-6)


@pytest.mark.parametrize("rate", [0.5, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_engine_that_is_stepped_one_by_one(seed: int, rate: float) -> None:
    asks = conversations(Random(seed), 400, rate)
    run = leap(SMALL, BLOCK, asks)
    same(run, step_through(SMALL, BLOCK, asks))
    assert run.hits > 0
    if rate > 2:
        assert any(served.preemptions for served in run.served)


@pytest.mark.parametrize("seed", range(2))
def test_it_is_the_engine_with_blocks_of_a_trace(seed: int) -> None:
    machine = replace(MACHINES["70b-tp4"], kv_tokens=40 * 512, max_num_seqs=16)
    asks = conversations(Random(seed), 150, 0.5, longest=9000, answer=700)
    for ask in asks:
        ask.prompt = tuple(token for token in ask.prompt for _ in range(40))[:9000]
    same(leap(machine, 512, asks), step_through(machine, 512, asks))


@given(st.integers(0, 2**32), st.floats(0.2, 50.0), st.integers(1, 8), st.integers(8, 80), st.integers(27, 60))
def test_it_is_the_same_engine_whatever_its_limits(
    seed: int, rate: float, seqs: int, batched: int, blocks: int
) -> None:
    machine = replace(SMALL, max_num_seqs=seqs, max_batched_tokens=batched, kv_tokens=blocks * BLOCK)
    asks = conversations(Random(seed), 25, rate)
    same(leap(machine, BLOCK, asks), step_through(machine, BLOCK, asks))
