"""Sessions of agents: prompts that grow, what they share, and when their turns come."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.agents import Agents, AgentShape
from gateway.commands.replay.workload import VLLM_BLOCK, TraceCall
from gateway.errors import ConfigError
from tests.commands.replay.runs import assert_blocks_stand_for_one_prefix, played
from tests.support.examples import examples

SMALL = AgentShape(sessions=12, shared=600, begin=1500, longest=8000, results=500, output=100, gap=12.0)


def by_session(calls: list[TraceCall]) -> dict[str | None, list[TraceCall]]:
    found: dict[str | None, list[TraceCall]] = {}
    for call in calls:
        found.setdefault(call.session, []).append(call)
    return found


@pytest.mark.parametrize("rate", [None, 2.0])
def test_every_session_is_played_to_its_end(rate: float | None) -> None:
    workload = Agents(SMALL, rate=rate, seed=1)
    calls = played(workload)
    assert len(calls) == workload.requests
    sessions = by_session(calls)
    assert len(sessions) == 12
    for turns in sessions.values():
        for earlier, later in pairwise(turns):
            assert later.input_tokens > earlier.input_tokens + earlier.output_tokens
            # All that was said, the answer too, but for a last block that was not full.
            whole = (earlier.input_tokens + earlier.output_tokens) // VLLM_BLOCK
            assert later.blocks[:whole] == earlier.blocks[:whole]
            assert 2.0 <= later.at - earlier.at <= 2.0 + 12.0
        assert turns[-1].input_tokens <= 8000


def test_all_share_the_system_prompt_and_nothing_else() -> None:
    sessions = by_session(played(Agents(SMALL, rate=2.0, seed=1)))
    shared = 600 // VLLM_BLOCK
    assert {turns[0].blocks[:shared] for turns in sessions.values()} == {tuple(range(shared))}
    held = Counter(block for turns in sessions.values() for block in {b for call in turns for b in call.blocks})
    assert {block for block, count in held.items() if count > 1} == set(range(shared))


def test_the_default_is_a_hundred_agents_from_20000_to_100000_tokens() -> None:
    calls = played(Agents(AgentShape(), seed=1))
    sessions = by_session(calls)
    assert len(sessions) == 100
    assert fmean(turns[0].input_tokens for turns in sessions.values()) == pytest.approx(20_000, rel=0.1)
    assert all(turns[-1].input_tokens > 70_000 for turns in sessions.values())
    assert max(call.input_tokens for call in calls) <= 100_000
    assert fmean(call.output_tokens for call in calls) == pytest.approx(400, rel=0.1)
    assert len(calls) / 100 == pytest.approx(28, rel=0.1)
    again = sum(call.input_tokens for call in calls) - sum(turns[-1].input_tokens for turns in sessions.values())
    assert again / sum(call.input_tokens for call in calls) > 0.9
    gaps = [later.at - earlier.at - 2.0 for turns in sessions.values() for earlier, later in pairwise(turns)]
    assert fmean(gaps) == pytest.approx(10, rel=0.1)
    assert 50 < max(gaps) <= 60 + 1e-9


def test_sessions_begin_at_the_rate_that_makes_the_requests() -> None:
    workload = Agents(AgentShape(sessions=1000, begin=20_000, longest=40_000), rate=3.0, seed=1)
    begin = [call.at for call in workload.start()]
    assert len(begin) == 1000
    assert begin == sorted(begin)
    assert workload.requests / begin[-1] == pytest.approx(3.0, rel=0.1)


def test_a_closed_loop_has_so_many_sessions_at_a_time() -> None:
    workload = Agents(AgentShape(**{**vars_of(SMALL), "live": 3}), seed=1)
    assert len(workload.start()) == 3
    open_ = {call.session for call in workload.start()}
    waiting, seen = list(workload.start()), set(open_)
    while waiting:
        call = waiting.pop(0)
        following = workload.answered(call, call.at + 1.0)
        open_.discard(call.session)
        open_ |= {one.session for one in following}
        seen |= open_
        assert len(open_) <= 3
        assert len(open_) == 3 or len(seen) == 12
        waiting += following
    assert len(seen) == 12


def vars_of(shape: AgentShape) -> dict[str, object]:
    return {name: getattr(shape, name) for name in AgentShape.__dataclass_fields__}


def test_sizes_and_gaps_are_a_session_s_own_whatever_the_answers_take() -> None:
    def sizes(seed: int, seconds: float) -> dict[str | None, list[tuple[int, int, tuple[int, ...]]]]:
        calls = played(Agents(SMALL, rate=2.0, seed=seed), seconds)
        return {
            session: [(call.input_tokens, call.output_tokens, call.blocks) for call in turns]
            for session, turns in by_session(calls).items()
        }

    assert sizes(1, 1.0) == sizes(1, 50.0) != sizes(2, 1.0)


@examples(50)
@given(
    shared=st.integers(0, 900), more=st.integers(1, 900), longest=st.integers(0, 4000), results=st.integers(50, 900),
    output=st.integers(1, 900), rate=st.none() | st.floats(0.1, 50), live=st.none() | st.integers(1, 3),
)  # fmt: skip
def test_blocks_cover_every_prompt_and_stand_for_one_prefix(shared, more, longest, results, output, rate, live) -> None:
    begin = shared + more
    shape = AgentShape(3, live, shared, begin, begin + longest, results, output, 1.0)
    calls = played(Agents(shape, rate=rate, seed=1))
    assert len({call.session for call in calls}) == 3
    assert all(1 <= call.input_tokens <= shape.longest for call in calls)
    assert_blocks_stand_for_one_prefix(calls)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sessions": 0}, "sessions must be in 1..100000"),
        ({"live": 0}, "live must be in 1..100"),
        ({"live": 101}, "live must be in 1..100, the sessions in all"),
        ({"results": 0}, "results must be in 1..16777216 tokens"),
        ({"output": 10**9}, "output must be in 1..16777216 tokens"),
        ({"shared": 20_000}, "shared must be below begin"),
        ({"longest": 10_000}, "begin at most longest"),
        ({"longest": 10**7, "results": 1, "output": 1}, "at most 10000 turns"),
        ({"gap": -1.0}, "gap must be in"),
        ({"gap": float("nan")}, "gap must be in"),
    ],
)
def test_shapes_that_make_no_sense(wrong, said) -> None:
    with pytest.raises(ConfigError, match=said):
        AgentShape(**wrong)


def test_a_rate_must_be_above_0() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Agents(SMALL, rate=0)
