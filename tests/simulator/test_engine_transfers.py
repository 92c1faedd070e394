"""The engine with jobs whose KV comes from elsewhere or stays for others: whose blocks are whose, and until when."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.blocks import KvEvent, Removed, Stored
from simulator.engine import Engine
from simulator.job import Finish, Job
from simulator.settings import EngineSettings
from tests.simulator.test_engine import BLOCK, engine, job, run
from tests.support.examples import examples


def waiting_job(prompt: Sequence[int], max_tokens: int = 1, size: int = BLOCK) -> Job:
    """A decode leg."""
    return job(prompt, max_tokens, size=size, remote_tokens=len(prompt), waits=True)


def begin(it: Engine, one: Job) -> Job:
    """Queue a job that waits, and let it take its blocks."""
    it.submit(one)
    it.begin(0.0)
    assert it.begun() == [one]
    return one


def test_what_is_here_already_is_not_waited_for() -> None:
    it = engine()
    run(it, [job(range(70))])
    one = begin(it, waiting_job(range(100)))
    assert (one.named, len(one.blocks), one.cached) == (2, 4, 100)
    assert (it.stats.external_hits, it.stats.prefix_hits) == (100 - 64, 64)


def test_it_goes_on_with_its_last_token() -> None:
    it = engine()
    one = begin(it, waiting_job(range(96)))
    it.arrive(one)
    outputs, batches, _ = run(it)
    assert [output.finish for output in outputs] == [Finish.LENGTH]
    assert [len(event.hashes) for event in batches[0] if isinstance(event, Stored)] == [3]
    assert it.pool.usage == 0


def test_others_run_while_it_waits() -> None:
    it = engine(max_num_seqs=1)
    begin(it, waiting_job(range(96)))
    assert it.queued == 1
    outputs, _, _ = run(it, [job(range(200, 240))])
    assert len(outputs) == 1


def test_there_must_be_room_for_it() -> None:
    it = engine(num_blocks=5)
    one = begin(it, waiting_job(range(100)))
    it.submit(waiting_job(range(200, 300)))
    assert it.begin(0.0) is None
    assert it.begun() == []
    assert it.fetching == {"waiting_to_start": 1, "in_progress": 1, "completed_waiting": 0}
    assert it.abort(one)
    assert it.begin(0.0) is None, "somebody writes into its blocks yet"
    it.arrive(one)
    it.begin(0.0)
    assert len(it.begun()) == 1


def test_what_does_not_come_is_computed_or_fails() -> None:
    it = engine()
    one, two = begin(it, waiting_job(range(96))), begin(it, waiting_job(range(200, 296)))
    assert it.lose(one, recompute=True) is None
    failed = it.lose(two, recompute=False)
    assert failed is not None
    assert (failed.job, failed.finish, it.stats.finished["error"]) == (two, Finish.ERROR, 1)
    outputs, _, _ = run(it)
    assert [output.job for output in outputs] == [one]
    assert (it.stats.prompt_tokens, it.stats.transferred) == (96, 0)
    assert it.pool.usage == 0


@pytest.mark.parametrize("word", ["arrive", "lose"])
def test_an_aborted_one_gives_its_blocks_up_when_nobody_writes_any_more(word: str) -> None:
    it = engine()
    one = begin(it, waiting_job(range(96)))
    assert it.abort(one)
    assert (it.pool.usage > 0, it.queued) == (True, 0)
    if word == "arrive":
        it.arrive(one)
    else:
        assert it.lose(one, recompute=False) is None
    assert it.pool.usage == 0
    it.arrive(one)
    assert it.lose(one, recompute=False) is None, "a second time nothing happens"


def test_one_that_has_its_kv_may_be_aborted_too() -> None:
    it = engine()
    one = begin(it, waiting_job(range(96)))
    it.arrive(one)
    assert it.abort(one)
    assert (it.pool.usage, it.queued) == (0, 0)


def test_kept_blocks_stay_until_they_are_freed() -> None:
    it = engine()
    one = job(range(96))
    one.keeps = (Finish.LENGTH,)
    run(it, [one])
    assert it.pool.free == 63 - 3
    assert not it.clear()
    assert it.free(one)
    assert not it.free(one)
    assert it.pool.usage == 0


def test_an_aborted_job_keeps_nothing() -> None:
    it = engine()
    one = job(range(96), max_tokens=9)
    one.keeps = (Finish.LENGTH, Finish.STOP)
    it.submit(one)
    it.begin(0.0)
    assert it.abort(one, Finish.STOP)
    assert it.pool.usage == 0


FATES = ("plain", "arrive", "recompute", "fail", "abort", "keep")


@examples(150)
@given(
    jobs=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=30),
            st.integers(1, 12),
            st.sampled_from(FATES),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(14, 40),
    budget=st.integers(4, 64),
    sequences=st.integers(1, 4),
)
def test_whatever_becomes_of_the_kv_every_job_ends_and_no_block_is_lost(
    jobs: list[tuple[list[int], int, str, int]], blocks: int, budget: int, sequences: int
) -> None:
    it = Engine(EngineSettings(block_size=4, num_blocks=blocks, max_batched_tokens=budget, max_num_seqs=sequences))
    fates: dict[Job, tuple[str, int]] = {}
    for prompt, limit, fate, delay in jobs:
        one = job(prompt, limit, size=4) if fate in ("plain", "keep") else waiting_job(prompt, limit, 4)
        one.keeps = (Finish.LENGTH,) if fate == "keep" else ()
        fates[one] = (fate, delay)
        it.submit(one)
    loads: dict[Job, int] = {}
    events: list[KvEvent] = []
    for _ in range(4000):
        step = it.begin(0.0)
        loads.update((one, fates[one][1]) for one in it.begun())
        if step is not None:
            it.finish(step, 0.0)
        events += it.events()
        for one, left in list(loads.items()):
            loads[one] = left - 1
            if left > 0:
                continue
            del loads[one]
            match fates[one][0]:
                case "arrive":
                    it.arrive(one)
                case "abort":
                    it.abort(one)
                    it.arrive(one)
                case fate:
                    it.lose(one, recompute=fate == "recompute")
        for one in list(it.kept):
            it.free(one)
        if step is None and not it.queued and not loads:
            break
    ends = {"fail": Finish.ERROR, "abort": Finish.ABORT}
    assert [one.finish for one in fates] == [ends.get(fate, Finish.LENGTH) for fate, _ in fates.values()]
    assert (it.pool.usage, len(it.loading), len(it.loaded), len(it.kept)) == (0, 0, 0, 0)
    heard: dict[bytes, int] = {}
    for event in itertools.chain(events, it.events()):
        if isinstance(event, Stored):
            for name in event.hashes:
                heard[name] = heard.get(name, 0) + 1
        elif isinstance(event, Removed):
            heard[event.hash] -= 1
    assert {name for name, count in heard.items() if count} == it.pool.held
