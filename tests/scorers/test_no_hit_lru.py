from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gateway.framework import Plan
from scorers.no_hit_lru import NoHitLru
from tests.support.candidates import context, endpoint, request

FLEET = [endpoint(slot) for slot in range(5)]


def scorer(**parameters) -> NoHitLru:
    return NoHitLru(NoHitLru.Parameters(**parameters), context())


def test_new_prompts_take_turns() -> None:
    spread = scorer()
    assert spread.score(request(), FLEET) == [1.0, 0.75, 0.5, 0.25, 0.0]
    for slot in (0, 2):
        spread.on_placed(request(), Plan.of(FLEET[slot]))
    # Those that never had one come first, in their order; then the one that had one the longest ago.
    assert spread.score(request(), FLEET) == [0.25, 1.0, 0.0, 0.75, 0.5]
    spread.on_placed(request(), Plan.of(FLEET[0]))
    assert spread.score(request(), [FLEET[0], FLEET[2]]) == [0.0, 1.0]


def test_a_prompt_that_is_held_somewhere_is_no_turn() -> None:
    spread = scorer()
    held = request(held={3: 500})
    assert spread.score(held, FLEET) == [0.5] * 5
    spread.on_placed(held, Plan.of(FLEET[0]))
    assert spread.score(request(), FLEET) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_one_candidate_is_the_best_and_none_is_no_error() -> None:
    assert scorer().score(request(), FLEET[:1]) == [1.0]
    assert scorer().score(request(), []) == []


def test_both_legs_had_a_turn() -> None:
    spread = scorer()
    spread.on_placed(request(), Plan.of(FLEET[0], prefill=FLEET[1]))
    assert spread.score(request(), FLEET[:3]) == [0.5, 0.0, 1.0]


def test_the_least_recent_is_forgotten() -> None:
    spread = scorer(endpoints=1)
    for slot in (0, 1):
        spread.on_placed(request(), Plan.of(FLEET[slot]))
    assert spread.score(request(), FLEET[:2]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="endpoints"):
        NoHitLru.Parameters(endpoints=0)


def test_other_workers_know_whose_turn_it_is() -> None:
    notes: list[bytes] = []
    told = NoHitLru(NoHitLru.Parameters(), replace(context(), random=random.Random(0), tell=notes.append))
    told.on_placed(request(), Plan.of(FLEET[0]))
    told.on_placed(request(), Plan.of(FLEET[1]))
    heard, began = scorer(), scorer()
    for note in notes:
        heard.on_heard(note)
    for note in told.remembered():
        began.on_heard(note)
    for other in (heard, began):
        assert other.score(request(), FLEET[:3]) == told.score(request(), FLEET[:3]) == [0.5, 0.0, 1.0]
