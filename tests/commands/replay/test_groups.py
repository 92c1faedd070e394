"""The generated workload: sizes, what is shared, and how turns follow answers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.groups import Groups, Shape
from gateway.commands.replay.workload import VLLM_BLOCK
from gateway.errors import ConfigError
from tests.commands.replay.runs import assert_blocks_stand_for_one_prefix, played
from tests.support.examples import examples

SMALL = Shape(groups=3, users=2, rounds=2, turns=3, shared=600, own=400, output=200, think=5.0, block=200)


@pytest.mark.parametrize("rate", [None, 2.0])
def test_all_requests_are_made(rate) -> None:
    calls = played(Groups(SMALL, rate=rate, seed=1))
    assert len(calls) == SMALL.requests == 36
    assert len({call.session for call in calls}) == SMALL.conversations == 12
    assert all(call.output_tokens == 200 for call in calls)


def test_the_cell_of_the_benchmark() -> None:
    call = Groups(Shape(), rate=16.0, seed=1).start()[0]
    assert (call.input_tokens, call.output_tokens) == (7200, 1000)
    assert len(call.blocks) == -(-8200 // VLLM_BLOCK)
    assert Shape().requests == 6000


def test_each_turn_holds_all_that_was_said() -> None:
    calls = played(Groups(SMALL, rate=2.0, seed=1))
    for session in {call.session for call in calls}:
        turns = [call for call in calls if call.session == session]
        assert [call.input_tokens for call in turns] == [1000, 1600, 2200]
        for earlier, later in pairwise(turns):
            # The prompt and its answer, to the last token.
            assert earlier.blocks == later.blocks[: len(earlier.blocks)]
            assert len(earlier.blocks) * SMALL.block == earlier.input_tokens + earlier.output_tokens


def test_a_group_shares_its_system_prompt_and_nothing_else() -> None:
    first = [call for call in played(Groups(SMALL, rate=2.0, seed=1)) if call.input_tokens == 1000]
    systems = Counter(call.blocks[:3] for call in first)
    assert sorted(systems.values()) == [4, 4, 4]  # 2 users x 2 rounds
    own = [block for call in first for block in call.blocks[3:]]
    assert len(own) == len(set(own))


def test_conversations_begin_at_the_rate_whatever_the_answers_take() -> None:
    shape = Shape(groups=50, users=10, rounds=4, turns=2)
    begin = Groups(shape, rate=8.0, seed=3).start()
    assert len(begin) == 2000
    assert len(begin) / begin[-1].at == pytest.approx(4.0, rel=0.05)
    users = Counter(call.session.split("-")[0] for call in begin[:500])
    assert set(users.values()) == {1}  # each once before any comes again


def test_a_turn_follows_its_answer_by_a_think_time() -> None:
    shape = Shape(groups=20, users=20, rounds=1, turns=2, think=7.0)
    workload = Groups(shape, rate=10.0, seed=1)
    pauses = []
    for call in workload.start():
        [following] = workload.answered(call, 1000.0)
        assert workload.answered(following, 2000.0) == []
        pauses.append(following.at - 1000.0)
    assert min(pauses) > 0
    assert sum(pauses) / len(pauses) == pytest.approx(7.0, rel=0.15)


def test_a_closed_loop_has_one_request_for_each_user_at_a_time() -> None:
    workload = Groups(SMALL, seed=1)
    assert len(workload.start()) == 6
    in_flight = Counter(call.session.split("-")[0] for call in workload.start())
    assert set(in_flight.values()) == {1}
    slow = played(Groups(SMALL, seed=1), answer_seconds=100.0)
    fast = played(Groups(SMALL, seed=1), answer_seconds=1.0)
    assert slow[-1].at > 500 > fast[-1].at


def test_a_seed_is_one_workload() -> None:
    one, same, other = (
        [(call.at, call.blocks, call.session) for call in played(Groups(SMALL, rate=2.0, seed=seed))]
        for seed in (1, 1, 2)
    )
    assert one == same != other


@examples(50)
@given(
    shared=st.integers(0, 1500), own=st.integers(1, 900), output=st.integers(1, 900), turns=st.integers(1, 4),
    rate=st.none() | st.floats(0.1, 50),
)  # fmt: skip
def test_blocks_cover_every_prompt_and_stand_for_one_prefix(shared, own, output, turns, rate) -> None:
    shape = Shape(groups=2, users=2, rounds=1, turns=turns, shared=shared, own=own, output=output, think=1.0)
    assert_blocks_stand_for_one_prefix(played(Groups(shape, rate=rate, seed=1)))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"block": 0}, "block must be in 1..512 tokens"),
        ({"groups": 0}, "groups must be at least 1"),
        ({"turns": 0}, "turns must be at least 1"),
        ({"shared": -1}, "shared must be at least 0"),
        ({"own": 10**12}, "own must be at most 16777216 tokens"),
        ({"users": 10**9}, "must be at most 10000000 requests"),
        ({"think": -1.0}, "think must be in"),
        ({"think": float("nan")}, "think must be in"),
        ({"think": float("inf")}, "think must be in"),
        ({"think": 1e308}, "think must be in"),
    ],
)
def test_shapes_that_make_no_sense(wrong, said) -> None:
    with pytest.raises(ConfigError, match=said):
        Shape(**wrong)


def test_a_rate_must_be_above_0() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Groups(SMALL, rate=0)


@pytest.mark.parametrize("rate", [None, 1.0])
def test_pauses_do_not_depend_on_whose_answer_came_first(rate) -> None:
    def pauses(order: int) -> dict[tuple[str | None, int], float]:
        groups = Groups(Shape(groups=2, users=2, rounds=2, turns=3), rate=rate, seed=1)
        open_, found = list(groups.start()), {}
        while open_:
            call = open_.pop(order)
            for following in groups.answered(call, 100.0):
                found[following.session, following.input_tokens] = following.at
                open_.append(following)
        return found

    first, last = pauses(0), pauses(-1)
    assert first == last
    assert len(set(first.values())) == len(first)
