from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from gateway.framework import Kind, Plan, Request
from gateway.framework.fleet import Model
from gateway.framework.match import Match, Matches
from gateway.framework.request import DECODE, PREFILL, PlannedLeg
from tests.support.candidates import endpoint


@pytest.mark.parametrize(("hit", "new"), [(0, 100), (96, 4), (100, 1), (112, 1)])
def test_at_least_one_token_is_computed(hit: int, new: int) -> None:
    """Also where more is held than the prompt has: an engine computes its last token to sample from it."""
    matches = Matches({0: Match(gpu=hit, expected_hit=hit)})
    request = Request("r", Model("m"), Kind.CHAT, 0.0, prompt_tokens=100, matches=matches)
    assert request.new_tokens(endpoint(0)) == new


def test_nothing_is_held_where_there_is_no_match() -> None:
    request = Request("r", Model("m"), Kind.CHAT, 0.0, prompt_tokens=100)
    assert request.new_tokens(endpoint(0)) == 100


def test_a_plans_legs_have_kinds_and_the_decode_leg_is_the_last() -> None:
    a, b, c = endpoint(0), endpoint(1), endpoint(2)
    alone = Plan.of(a, reason="single")
    assert alone == Plan((PlannedLeg((DECODE, a)),), "single")
    assert (alone.decode, alone.prefill, alone.kinds) == (a, None, (DECODE,))
    split = Plan.of(a, prefill=b, reason="split", connector="sglang", strict=True)
    assert split == Plan((PlannedLeg((PREFILL, b)), PlannedLeg((DECODE, a))), "split", "sglang", True)
    assert (split.decode, split.prefill, split.kinds) == (a, b, (PREFILL, DECODE))
    third = Plan.of(a, encode=c, prefill=b)
    assert third.kinds == ("encode", PREFILL, DECODE)
    assert [third.endpoint(kind) for kind in (*third.kinds, "pull")] == [c, b, a, None]


@pytest.mark.parametrize("kinds", [(), ("prefill",), ("decode", "prefill"), ("prefill", "prefill", "decode")], ids=str)
def test_a_plan_ends_with_its_decode_leg_and_has_one_of_each_kind(kinds: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="a plan"):
        Plan(tuple(PlannedLeg((kind, endpoint(number))) for number, kind in enumerate(kinds)))


def test_a_plan_can_be_a_key_and_is_not_changed() -> None:
    a, b = endpoint(0), endpoint(1)
    plan = Plan.of(a, prefill=b, reason="split")
    assert {plan: 1}[Plan.of(a, prefill=b, reason="split")] == 1
    with pytest.raises(FrozenInstanceError):
        plan.legs = plan.legs[-1:]
    with pytest.raises(TypeError):
        plan.costs["x"] = 1.0
