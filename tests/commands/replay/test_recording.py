"""A recording as a workload: how time is scaled, and what a conversation is."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.recording import Recording, Trace, sessions, spread
from gateway.commands.replay.sources import read
from gateway.commands.replay.workload import TraceCall
from gateway.errors import ConfigError

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(0, 5))
def test_spreading_keeps_each_batch_before_the_next(times, seed) -> None:
    times = sorted(times)
    moved = spread(times, random.Random(seed))
    assert moved == sorted(moved)
    later = dict(pairwise(sorted(set(times))))
    for at, new in zip(times, moved, strict=True):
        assert new >= at
        if at in later:
            assert new <= later[at]


def test_batches_are_spread_over_their_width_and_not_over_a_pause() -> None:
    times = [0.0] * 500 + [3.0] * 500 + [6.0] * 500 + [600.0] * 500
    moved = spread(times, random.Random(1))
    for begin, part in zip((0, 3, 6, 600), (moved[i : i + 500] for i in range(0, 2000, 500)), strict=True):
        assert begin <= part[0] < begin + 0.1
        assert begin + 2.9 < part[-1] < begin + 3


def test_time_is_scaled_to_the_rate() -> None:
    excerpt = read(EXCERPT)
    calls = Trace("excerpt", excerpt, rate=3.6, seed=1).start()
    assert calls[0].at == 0.0
    assert (len(calls) - 1) / calls[-1].at == pytest.approx(3.6)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    faster = Trace("excerpt", excerpt, rate=7.2, seed=1).start()
    assert [call.at for call in faster] == pytest.approx([call.at / 2 for call in calls])


def test_without_a_rate_it_keeps_its_pace() -> None:
    calls = Trace("excerpt", read(EXCERPT), seed=1).start()
    assert calls[-1].at == pytest.approx(read(EXCERPT).lines[-1].at, abs=3.1)


def test_a_seed_is_one_workload() -> None:
    excerpt = read(EXCERPT)
    times = [[call.at for call in Trace("excerpt", excerpt, rate=1, seed=seed).start()] for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_must_be_above_0(rate) -> None:
    with pytest.raises(ConfigError, match="the rate must be above 0"):
        Trace("excerpt", read(EXCERPT), rate=rate)


def test_one_instant_has_no_load_to_scale() -> None:
    with pytest.raises(ConfigError, match="all 2 requests come at once"):
        Trace("burst", Recording([TraceCall(1.0, 1, 1, (0,)), TraceCall(1.0, 1, 1, (1,))], 512), rate=1)


def test_a_session_is_what_follows_the_shared_system_prompt() -> None:
    chats = [TraceCall(0.0, 1200, 1, (0, 1 + user, 100 + user + 50 * turn)) for turn in range(3) for user in range(30)]
    named = sessions(Recording(chats, 512))
    assert len(set(named)) == 30
    assert named[:30] == named[30:60] == named[60:]


def test_nothing_follows_an_answer() -> None:
    trace = Trace("excerpt", read(EXCERPT))
    assert trace.answered(trace.start()[0], 5.0) == ()


def test_a_trace_without_prefixes_has_the_sessions_that_it_names_and_no_others() -> None:
    lines = [TraceCall(0.0, 20, 1, range(2)), TraceCall(1.0, 20, 1, range(2, 4), "a")]
    assert sessions(Recording(lines, 16, prefixes=False)) == [None, "a"]
    assert sessions(Recording(lines[:1], 16, prefixes=False)) == [None]
