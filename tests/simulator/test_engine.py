"""The engine in virtual time: what it caches, how it batches, what it counts, and that it always comes to an end."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.blocks import BlockPool, Cleared, HashChain, KvEvent, Removed, Stored
from simulator.engine import Engine
from simulator.job import Finish, Job, Output
from simulator.settings import EngineSettings
from tests.support.examples import examples

BLOCK = 32
"""As in the captures."""


def engine(**changes: object) -> Engine:
    return Engine(EngineSettings(**{"block_size": BLOCK, "num_blocks": 64, **changes}))  # type: ignore[arg-type]


def job(prompt: Sequence[int], max_tokens: int = 1, *, size: int = BLOCK, eos: int | None = None, **more: int) -> Job:
    return Job(
        id="job",
        tokens=array("I", prompt),
        max_tokens=max_tokens,
        sampler=itertools.count(900),
        chain=HashChain(size),
        arrived=0.0,
        eos=eos,
        **more,
    )


def run(engine: Engine, jobs: Iterable[Job] = (), now: float = 0.0) -> tuple[list[Output], list[list[KvEvent]], float]:
    """Everything until it is idle: outputs, events by step, and the time at the end."""
    for each in jobs:
        engine.submit(each)
    outputs: list[Output] = []
    batches = []
    while (step := engine.begin(now)) is not None:
        now += step.seconds
        outputs += engine.finish(step, now)
        if events := engine.events():
            batches.append(events)
    return outputs, batches, now


def stored(batches: list[list[KvEvent]]) -> list[Stored]:
    return [event for events in batches for event in events if isinstance(event, Stored)]


def test_a_prompt_is_computed_and_announced_by_its_full_blocks() -> None:
    one = job(range(82), max_tokens=48)
    outputs, batches, _ = run(engine(), [one])
    assert [output.token for output in outputs] == list(range(900, 948))
    assert outputs[-1].finish is Finish.LENGTH
    # As captured for a prompt of 82 tokens and 48 more: two blocks of the prompt at once, then each as it fills.
    runs = stored(batches)
    assert [len(event.hashes) for event in runs] == [2, 1, 1]
    assert list(runs[1].tokens) == [*range(64, 82), *range(900, 914)]
    assert [event.parent for event in runs] == [None, runs[0].hashes[1], runs[1].hashes[0]]


def test_the_last_token_is_never_computed() -> None:
    """It is sampled and the request ends: a block that it would fill is not cached."""
    _, batches, _ = run(engine(), [job(range(31), max_tokens=1)])
    assert stored(batches) == []
    _, batches, _ = run(engine(), [job(range(31), max_tokens=2)])
    assert len(stored(batches)) == 1


def test_a_hit_leaves_at_least_one_token_and_the_last_block_is_announced_again() -> None:
    """As captured: 64 of 96 cached tokens for the very same prompt, and its third block stored again."""
    it = engine()
    _, batches, _ = run(it, [job(range(96))])
    first = stored(batches)[0]
    again = job(range(96))
    _, batches, _ = run(it, [again])
    assert again.cached == 64
    assert [event.hashes for event in stored(batches)] == [first.hashes[2:]]
    assert (it.stats.prefix_queries, it.stats.prefix_hits) == (192, 64)


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    it = engine()
    run(it, [job(range(40), max_tokens=60)])
    following = job([*range(40), *range(900, 960), 7])
    run(it, [following])
    # 99 of the 100 tokens were computed: three full blocks.
    assert following.cached == 96


def test_salt_and_adapter_share_nothing() -> None:
    it = engine()
    run(it, [job(range(96))])
    for chain in (HashChain(BLOCK, salt="a"), HashChain(BLOCK, adapter="a")):
        other = job(range(96))
        other.chain = chain
        run(it, [other])
        assert other.cached == 0


def test_clearing_is_announced_with_the_next_step() -> None:
    it = engine()
    run(it, [job(range(96))])
    assert it.clear()
    assert it.begin(0.0) is None, "nothing is said while nothing runs"
    _, batches, _ = run(it, [job(range(96))])
    assert isinstance(batches[0][0], Cleared)
    assert isinstance(batches[0][1], Stored)


def test_nothing_is_cleared_while_a_request_runs() -> None:
    it = engine()
    it.submit(job(range(96), max_tokens=9))
    it.begin(0.0)
    assert not it.clear()


def test_a_long_prompt_is_computed_in_chunks_beside_running_requests() -> None:
    it = engine(max_batched_tokens=100)
    short = job(range(10), max_tokens=9)
    it.submit(short)
    step = it.begin(0.0)
    assert step is not None
    it.finish(step, 0.1)
    long = job(range(1000, 1250))
    it.submit(long)
    sizes = []
    while (step := it.begin(0.2)) is not None:
        sizes.append([count for _, count in step.batch])
        it.finish(step, 0.3)
    assert sizes[:4] == [[1, 99], [1, 99], [1, 52], [1]]


def test_seconds_of_a_step_are_the_sum_of_their_terms() -> None:
    it = engine(
        step_seconds=1.0,
        prefill_base_seconds=10.0,
        prefill_token_seconds=100.0,
        prefill_context_seconds=1e6,
        step_request_seconds=1e3,
        kv_token_seconds=1e4,
    )
    it.submit(job(range(4), max_tokens=2))
    step = it.begin(0.0)
    assert step is not None
    assert step.seconds == 1 + 10 + 4 * 100 + 4 * 2 * 1e6
    it.finish(step, step.seconds)
    step = it.begin(0.0)
    assert step is not None
    assert step.seconds == 1 + 1e3 + 4 * 1e4


def test_waits_where_there_are_enough_sequences() -> None:
    it = engine(max_num_seqs=2)
    for start in (0, 100, 200):
        it.submit(job(range(start, start + 40), max_tokens=5))
    it.begin(0.0)
    assert (len(it.running), len(it.waiting)) == (2, 1)


def test_first_come_first_served_even_if_a_later_one_would_fit() -> None:
    it = engine(num_blocks=6)
    jobs = [job(range(64), 40), job(range(100, 228)), job(range(300, 310))]
    for each in jobs:
        it.submit(each)
    it.begin(0.0)
    assert list(it.waiting) == jobs[1:]


def test_the_youngest_gives_its_blocks_and_starts_again() -> None:
    it = engine(num_blocks=6)
    first, second = job(range(60), max_tokens=80), job(range(100, 160), max_tokens=80)
    outputs, _, _ = run(it, [first, second])
    assert it.stats.preemptions >= 1
    assert (first.preemptions, second.preemptions) == (0, it.stats.preemptions)
    for each in (first, second):
        assert [o.token for o in outputs if o.job is each] == list(range(900, 980))
    assert it.stats.prefix_queries == 120, "a preempted request is not counted twice"


def test_the_end_of_text_ends_it() -> None:
    one = job(range(10), max_tokens=50, eos=903)
    outputs, _, _ = run(engine(), [one])
    assert [output.token for output in outputs] == [900, 901, 902, 903]
    assert one.finish is Finish.STOP


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_an_abort_frees_at_once(when: str) -> None:
    it = engine()
    one = job(range(100), max_tokens=50)
    it.submit(one)
    if when == "running":
        step = it.begin(0.0)
        assert step is not None
        assert it.pool.usage > 0
    assert it.abort(one)
    assert (it.pool.usage, it.running, list(it.waiting)) == (0, [], [])
    if when == "running":
        assert step is not None
        assert it.finish(step, 0.1) == []
    assert not it.abort(one), "a second time it had ended already"
    assert it.stats.finished["abort"] == 1


def test_a_decode_leg_computes_only_the_last_token_and_announces_what_it_received() -> None:
    it = engine()
    one = job(range(79), max_tokens=2, remote_tokens=79, waits=True)
    it.submit(one)
    assert it.begin(0.0) is None
    assert it.begun() == [one]
    assert it.fetching == {"waiting_to_start": 0, "in_progress": 1, "completed_waiting": 0}
    assert it.events() == [], "nothing is named before it is there"
    it.arrive(one)
    assert it.fetching["completed_waiting"] == 1
    step = it.begin(0.0)
    assert step is not None
    assert [count for _, count in step.batch] == [1]
    assert len(stored([it.events()])[0].hashes) == 2
    # The captured deltas of a real one.
    assert (it.stats.external_queries, it.stats.external_hits, it.stats.prefix_hits) == (79, 79, 0)
    assert (it.stats.prompt_tokens, it.stats.transferred) == (79, 79)


def test_a_pooled_prompt_ends_without_a_token() -> None:
    it = engine()
    outputs, _, _ = run(it, [job(range(40), pooling=True)])
    assert [(output.token, output.finish) for output in outputs] == [(-1, Finish.STOP)]
    assert it.stats.generation_tokens == 0


@pytest.mark.parametrize("tokens", [0, 63 * BLOCK])
def test_what_can_never_run_is_refused(tokens: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        engine().submit(job(range(tokens)))


@examples(80)
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 20)), min_size=1, max_size=12
    ),
    blocks=st.integers(14, 40),
    budget=st.integers(4, 64),
    sequences=st.integers(1, 4),
)
def test_every_job_ends_with_its_tokens_and_leaves_nothing(
    prompts: list[tuple[list[int], int]], blocks: int, budget: int, sequences: int
) -> None:
    it = engine(block_size=4, num_blocks=blocks, max_batched_tokens=budget, max_num_seqs=sequences)
    jobs = [job(prompt, limit, size=4) for prompt, limit in prompts]
    outputs, batches, _ = run(it, jobs)
    for each, (prompt, limit) in zip(jobs, prompts, strict=True):
        assert each.generated == min(limit, it.settings.longest - len(prompt))
        assert each.finish is Finish.LENGTH
        assert each.cached is not None
        assert each.cached < len(prompt)
    assert it.pool.usage == 0
    assert it.stats.generation_tokens == len(outputs)
    heard: dict[bytes, int] = {}
    for event in itertools.chain.from_iterable(batches):
        if isinstance(event, Stored):
            assert len(event.tokens) == len(event.hashes) * 4
            for name in event.hashes:
                heard[name] = heard.get(name, 0) + 1
        elif isinstance(event, Removed):
            heard[event.hash] -= 1
    assert {name for name, count in heard.items() if count} == it.pool.held


@examples(60)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=10), st.integers(6, 24))
def test_one_after_the_other_a_hit_is_what_the_pool_holds(prompts: list[list[int]], blocks: int) -> None:
    """The reported hit equals the longest held prefix at that moment, cut to the prompt but one token."""
    it = engine(block_size=4, num_blocks=max(blocks, 8))
    for prompt in prompts:
        names = HashChain(4)
        names.extend(array("I", prompt))
        whole = (len(prompt) - 1) // 4
        held = list(itertools.takewhile(lambda name: name in it.pool.held, names.names[:whole]))
        one = job(prompt, size=4)
        run(it, [one])
        assert one.cached == 4 * len(held)


def test_the_pool_is_whole_at_the_start() -> None:
    assert isinstance(engine().pool, BlockPool)
    assert engine().pool.free == 63
