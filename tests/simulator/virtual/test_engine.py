"""The engine in virtual time against ``simulator.engine``, stepped one by one, and against queueing theory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf, sqrt
from random import Random
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.virtual.engine import Engine
from simulator.virtual.job import Job
from simulator.virtual.link import Link
from simulator.virtual.machine import MACHINES, Machine
from simulator.virtual.pool import PoolEvent, Removed, Stored, Tier
from tests.simulator.virtual.naive import Ask, Run, Served, names, step_through
from tests.support.examples import examples, slowly

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
    async_scheduling=False,
)
ASYNC = replace(SMALL, async_scheduling=True)
BLOCK = 8


class Stepping(Engine):
    """Takes each step by itself."""

    def _next_stop(self) -> int:
        super()._next_stop()
        return self._decoded + 1


def leap(machine: Machine, block_size: int, asks: list[Ask], kind: type[Engine] = Engine) -> Run:
    """As ``step_through``, by the engine in virtual time."""
    ids: dict[bytes, int] = {}
    engine = kind(machine, block_size)
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
@pytest.mark.parametrize("seed", [0, *slowly(1, 2)])
def test_it_is_the_engine_that_is_stepped_one_by_one(seed: int, rate: float) -> None:
    asks = conversations(Random(seed), 400, rate)
    run = leap(SMALL, BLOCK, asks)
    same(run, step_through(SMALL, BLOCK, asks))
    assert run.hits > 0
    if rate > 2:
        assert any(served.preemptions for served in run.served)


@pytest.mark.parametrize("seed", range(2))
def test_it_is_the_engine_with_blocks_of_a_trace(seed: int) -> None:
    machine = replace(MACHINES["70b-tp4"], kv_tokens=40 * 512, max_num_seqs=16, weights=0.0, async_scheduling=False)
    asks = conversations(Random(seed), 150, 0.5, longest=9000, answer=700)
    for ask in asks:
        ask.prompt = tuple(token for token in ask.prompt for _ in range(40))[:9000]
    same(leap(machine, 512, asks), step_through(machine, 512, asks))


@examples(40)
@given(st.integers(0, 2**32), st.floats(0.2, 50.0), st.integers(1, 8), st.integers(8, 80), st.integers(27, 60))
def test_it_is_the_same_engine_whatever_its_limits(
    seed: int, rate: float, seqs: int, batched: int, blocks: int
) -> None:
    machine = replace(SMALL, max_num_seqs=seqs, max_batched_tokens=batched, kv_tokens=blocks * BLOCK)
    asks = conversations(Random(seed), 25, rate)
    same(leap(machine, BLOCK, asks), step_through(machine, BLOCK, asks))


@examples(40)
@given(
    st.integers(0, 2**32), st.floats(0.2, 50.0), st.integers(1, 8), st.integers(8, 80), st.integers(27, 60),
    st.sampled_from([0, 20, 1000]),
)  # fmt: skip
@example(2, 1.875, 2, 8, 38, 1000)  # what ends with a step makes room for one whose KV has come
def test_leaps_are_steps_where_each_is_scheduled_ahead_and_kv_is_offloaded(
    seed: int, rate: float, seqs: int, batched: int, blocks: int, host: int
) -> None:
    machine = replace(
        ASYNC, max_num_seqs=seqs, max_batched_tokens=batched, kv_tokens=blocks * BLOCK, weights=0.007,
        host_tokens=host * BLOCK, fetch_token=sqrt(2) / 1000,
    )  # fmt: skip
    # Steps take whole microseconds. Were it so of transfers, too, some would end with a step, and rounding would decide
    # which of the two comes first.
    asks = conversations(Random(seed), 25, rate)
    same(leap(machine, BLOCK, asks), leap(machine, BLOCK, asks, Stepping))


@pytest.mark.parametrize(("ahead", "step"), [(False, 4), (True, 5)])
def test_who_comes_in_a_step_runs_in_the_next_or_with_async_scheduling_in_the_one_after(ahead: bool, step: int) -> None:
    engine = Engine(replace(SMALL, async_scheduling=ahead, step_request=0.0, kv_token=0.0), BLOCK)
    first, second = Job((), 8, 50), Job((), 8, 1)
    engine.submit(first, 0.0)
    engine.advance()
    prefilled = engine.due
    while engine.due < prefilled + 0.01:
        engine.advance()
    engine.submit(second, prefilled + 2.5 * SMALL.step)  # in the third of the steps that decode
    while engine.due < inf:
        engine.advance()
    assert second.began_at == pytest.approx(prefilled + (step - 1) * SMALL.step)


def test_what_ends_with_a_step_keeps_its_place_while_the_next_was_scheduled_before_that_was_known() -> None:
    machine = replace(ASYNC, max_num_seqs=2, step_request=0.0, kv_token=0.0)
    engine = Engine(machine, BLOCK)
    short, long, waits = Job((), 8, 3), Job((), 8, 50), Job((), 8, 1)
    for job in (short, long, waits):
        engine.submit(job, 0.0)
    while engine.due < inf:
        engine.advance()
    assert waits.began_at is not None
    assert short.ended_at is not None
    assert waits.began_at == pytest.approx(short.ended_at + machine.step)


def test_an_idle_engine_begins_at_once_and_tells_of_it_with_the_first_step() -> None:
    engine = Engine(ASYNC, BLOCK)
    job = Job((1, 2), 2 * BLOCK, 3)
    said = play(engine, [(5.0, job)])
    assert job.began_at == 5.0
    assert said == [(job.first_at, Stored((1, 2), None, Tier.GPU))]


def test_weights_are_read_while_prompts_are_computed() -> None:
    def first(tokens: int, weights: float) -> float:
        engine = Engine(replace(SMALL, weights=weights, prefill_quadratic=0.0), BLOCK)
        job = Job((), tokens, 1)
        play(engine, [(0.0, job)])
        assert job.first_at is not None
        return job.first_at

    assert first(10, 0.008) == pytest.approx(0.01)
    assert first(60, 0.008) == pytest.approx(0.01 + 60 * 3e-4 - 0.008)
    assert first(60, 0.0) == pytest.approx(0.01 + 60 * 3e-4)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_it_waits_as_queueing_theory_says(load: float) -> None:
    """One request at a time, any length, at random times: Pollaczek and Khinchine's mean wait."""
    machine = replace(MACHINES["70b-tp4"], max_num_seqs=1, weights=0.0)
    random = Random(1)
    lengths = [random.randint(200, 8000) for _ in range(20_000)]
    seconds = [machine.step + n * (machine.prefill_token + machine.prefill_quadratic * n / 2) for n in lengths]
    rate = load / fmean(seconds)
    engine, jobs, at = Engine(machine, 512), [], 0.0
    for number, length in enumerate(lengths):
        at += random.expovariate(rate)
        while engine.due < at:
            engine.advance()
        jobs.append(Job(ids=(number,) * (length // 512), input_tokens=length, output_tokens=1))
        engine.submit(jobs[-1], at)
    while engine.due < inf:
        engine.advance()
    waits = [job.began_at - job.arrived for job in jobs if job.began_at is not None]
    assert len(waits) == len(jobs)
    assert engine.busy == pytest.approx(sum(seconds))
    expected = rate * fmean(each**2 for each in seconds) / (2 * (1 - load))
    assert fmean(waits) == pytest.approx(expected, rel=0.06)


def play(engine: Engine, coming: list[tuple[float, Job]]) -> list[tuple[float, PoolEvent]]:
    said = []
    while coming or engine.due < inf:
        if coming and coming[0][0] <= engine.due:
            at, job = coming.pop(0)
            engine.submit(job, at)
        else:
            engine.advance()
        said += [(at, event) for at, events in engine.news() for event in events]
    return said


def test_what_the_gpu_forgets_comes_back_from_the_host() -> None:
    machine = replace(SMALL, kv_tokens=8 * BLOCK, host_tokens=100 * BLOCK, fetch_token=1e-4)
    engine = Engine(machine, BLOCK)
    jobs = [Job(tuple(range(10 * n, 10 * n + 6)), 6 * BLOCK + 1, 1) for n in (0, 1, 0)]
    said = play(engine, [(10.0 * number, job) for number, job in enumerate(jobs)])
    assert [job.hit_tokens for job in jobs] == [0, 0, 6 * BLOCK]
    assert jobs[2].fetched_tokens == 5 * BLOCK  # one was left, and another free
    assert jobs[2].first_at == pytest.approx(
        20 + 5 * BLOCK * 1e-4 + machine.step + machine.prefill_token + machine.prefill_quadratic * (6 * BLOCK + 0.5)
    )
    # Two blocks are free: the rest push out the other prompt, from its end.
    assert [(type(event), event.tier, tuple(event.ids)) for at, event in said if at >= 20] == [
        (Removed, Tier.GPU, (15, 14, 13, 12, 11)),
        (Stored, Tier.GPU, (1, 2, 3, 4, 5)),
    ]
    # Each prompt was stored once, when it had been computed and the link had carried it.
    assert [(at, event.ids) for at, event in said if event.tier is Tier.CPU] == [
        (pytest.approx((job.first_at or 0.0) + 6 * BLOCK * 1e-4), [*job.ids]) for job in jobs[:2]
    ]


def hosted(**more: float) -> Engine:
    """An engine that has computed two prompts, of blocks 0.. and 10.., of which it holds none on the GPU any more."""
    machine = replace(ASYNC, kv_tokens=30 * BLOCK, host_tokens=100 * BLOCK, fetch_token=0.01, **more)
    engine = Engine(machine, BLOCK)
    coming = [(float(at), Job(tuple(range(at, at + 5)), 5 * BLOCK + 1, 1)) for at in (0, 10)]
    play(engine, [*coming, (20.0, Job((), 30 * BLOCK - 1, 1))])
    assert not engine.pool.held & {0, 10}
    return engine


def test_a_load_does_not_stop_those_that_run() -> None:
    engine = hosted()
    runs, loads, fresh = Job((), BLOCK, 100), Job(tuple(range(5)), 5 * BLOCK + 1, 1), Job((), BLOCK, 1)
    play(engine, [(100.0, runs), (100.1, loads), (100.2, fresh)])
    assert loads.fetched_tokens == 5 * BLOCK
    assert loads.began_at is not None
    assert fresh.first_at is not None
    assert loads.first_at == pytest.approx(loads.began_at + 5 * BLOCK * 0.01, abs=0.05)
    # Who came later and waits for nothing is served meanwhile, and the other's answer goes on.
    assert fresh.first_at < 100.3 < loads.first_at
    steps = 99 * 0.011 + 3e-6 * sum(range(BLOCK, BLOCK + 99))
    assert runs.ended_at == pytest.approx((runs.first_at or 0.0) + steps, abs=0.03)


def test_loads_wait_for_each_other_on_the_link() -> None:
    engine = hosted()
    jobs = [Job(tuple(range(at, at + 5)), 5 * BLOCK + 1, 1) for at in (0, 10)]
    play(engine, [(100.0, job) for job in jobs])
    assert [job.first_at for job in jobs] == [pytest.approx(100 + 5 * BLOCK * 0.01 * turn, abs=0.05) for turn in (1, 2)]


def test_kv_from_another_engine_is_not_computed() -> None:
    engine = Engine(ASYNC, BLOCK)
    links = (Link(0.01, 0.5), Link(0.002))
    first = Job(tuple(range(5)), 5 * BLOCK + 1, 3, links=links)
    again = Job(tuple(range(5)), 5 * BLOCK + 1, 3, links=links)
    said = play(engine, [(0.0, first), (10.0, again)])
    last = ASYNC.step + ASYNC.prefill_token + ASYNC.prefill_quadratic * (5 * BLOCK + 0.5)
    assert first.first_at == pytest.approx((5 * BLOCK + 1) * 0.01 + 0.5 + last)
    # Of what it holds itself nothing is moved.
    assert again.first_at == pytest.approx(10 + 0.01 + 0.5 + last)
    assert said == [(pytest.approx(first.first_at), Stored((0, 1, 2, 3, 4), None, Tier.GPU))]


def test_what_is_kept_for_another_engine_stays_until_it_is_given_up() -> None:
    engine = Engine(replace(ASYNC, kv_tokens=5 * BLOCK), BLOCK)
    kept, waits = Job((0, 1, 2), 3 * BLOCK, 1, keeps=True), Job((), 4 * BLOCK, 1)
    play(engine, [(0.0, kept), (1.0, waits)])
    assert kept.ended_at is not None
    assert waits.began_at is None
    assert engine.kv_usage == pytest.approx(0.6)
    engine.free(kept, 7.0)
    play(engine, [])
    assert waits.began_at == 7.0
    assert engine.pool.free == engine.pool.size


def jobs_of(asks: list[Ask]) -> list[tuple[float, Job]]:
    ids: dict[bytes, int] = {}
    return [
        (
            ask.at,
            Job(tuple(ids.setdefault(name, len(ids)) for name in names(ask, BLOCK)), len(ask.prompt), len(ask.answer)),
        )
        for ask in asks
    ]


@examples(40)
@given(st.integers(0, 2**32), st.integers(27, 40), st.integers(0, 60))
def test_its_events_tell_what_is_on_each_tier(seed: int, blocks: int, host: int) -> None:
    engine = Engine(replace(SMALL, kv_tokens=blocks * BLOCK, host_tokens=host * BLOCK), BLOCK)
    copies: Counter[tuple[Tier, int]] = Counter()
    for _, event in play(engine, jobs_of(conversations(Random(seed), 25, 2.0))):
        for each in event.ids:
            copies[event.tier, each] += 1 if isinstance(event, Stored) else -1
            assert copies[event.tier, each] >= 0
    assert {each for (tier, each), count in copies.items() if count and tier is Tier.GPU} == engine.pool.held
    assert {each: count for (tier, each), count in copies.items() if count and tier is Tier.CPU} == dict.fromkeys(
        engine.pool.held_on_host, 1
    )
    assert len(engine.pool.held_on_host) <= host


@examples(40)
@given(st.integers(0, 2**32), st.integers(27, 60))
def test_a_host_with_room_for_all_forgets_nothing(seed: int, blocks: int) -> None:
    engine = Engine(replace(SMALL, kv_tokens=blocks * BLOCK, host_tokens=10**9), BLOCK)
    coming = jobs_of(conversations(Random(seed), 25, 0.1))
    asked = [job for _, job in coming]
    held: set[int] = set()
    said = play(engine, coming)
    for job in asked:
        assert job.began_at is not None
        held |= {each for at, event in said if at <= job.began_at and event.tier is Tier.CPU for each in event.ids}
        most = (job.input_tokens - 1) // BLOCK
        run = next((n for n, each in enumerate(job.ids[:most]) if each not in held), most)
        assert job.hit_tokens >= run * BLOCK  # more where the GPU has what was generated
    prompts = {each for job in asked for each in job.ids[: job.input_tokens // BLOCK]}
    assert engine.pool.held_on_host == prompts


@pytest.mark.parametrize(("tokens", "output"), [(0, 1), (1, 0), (300, 21)])
def test_what_can_never_run_is_refused(tokens: int, output: int) -> None:
    with pytest.raises(ValueError, match="token"):
        Engine(SMALL, BLOCK).submit(Job((), tokens, output), 0.0)


def test_progress_is_told_within_a_leap() -> None:
    engine = Engine(replace(SMALL, kv_tokens=10**6), BLOCK)
    job = Job((), 8, 200)
    engine.submit(job, 0.0)
    engine.advance()
    engine.advance()
    assert job.first_at == pytest.approx(0.01 + 8 * (3e-4 + 2e-6 * 4))
    times, at = [], job.first_at
    for generated in range(1, 200):
        at += 0.011 + 3e-6 * (8 + generated - 1)
        times.append(at)
    while engine.due < inf:
        for number, at in enumerate(times):
            if engine.due > at > engine.due - 0.06 and job.offset is not None:
                assert job.offset + engine.decoded(at + 1e-9) == number + 2
                assert job.offset + engine.decoded(at - 1e-9) == number + 1
        engine.advance()
    assert job.ended_at == pytest.approx(times[-1])


def test_machines_are_checked() -> None:
    for changes in ({"step": 0}, {"kv_token": -1e-9}, {"kv_tokens": 0}, {"max_num_seqs": 0}, {"max_batched_tokens": 5}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            replace(SMALL, **changes)
    assert MACHINES["8b-h100+host"].host_tokens == 4_000_000
