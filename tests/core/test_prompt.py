from __future__ import annotations

from array import array

import pytest

from gateway.core.prompt import KnownPrefix, PrefixedIds, Prompt, estimate, joined


@pytest.mark.parametrize(("raw", "ids", "count"), [(b"", 0, 1), (b"abc", 0, 1), (b"abcd", 1, 1), (b"abcdefghi", 2, 2)])
def test_an_estimate_has_an_id_for_every_four_bytes_and_counts_one_token_at_least(
    raw: bytes, ids: int, count: int
) -> None:
    prompt = estimate(raw, "route")
    assert (len(prompt.ids), prompt.count, prompt.exact, prompt.why) == (ids, count, False, "route")


def test_equal_beginnings_have_equal_leading_ids() -> None:
    one, other = estimate(b"You are kind. Hello", ""), estimate(b"You are kind. Bye", "")
    assert one.ids[:3] == other.ids[:3]
    assert one.ids[3] != other.ids[3]


@pytest.mark.parametrize(("exact", "why", "whole"), [(True, "", True), (True, "media", False), (False, "", False)])
def test_a_prompt_with_something_to_explain_is_not_whole(exact: bool, why: str, whole: bool) -> None:
    assert Prompt(array("I", [1]), 1, exact, why).whole is whole


def test_ids_in_pieces_are_joined_once() -> None:
    ids = PrefixedIds(KnownPrefix(3), [array("I", [1, 2]).tobytes(), array("I", [3]).tobytes()], array("I", [4, 5]))
    assert (len(ids), ids.whole) == (5, None)
    assert joined(ids) == array("I", [1, 2, 3, 4, 5])
    assert joined(ids) is joined(ids)
    assert ids == array("I", [1, 2, 3, 4, 5]) == ids
    assert ids != array("I", [1, 2, 3, 4])
    plain = array("I", [1])
    assert joined(plain) is plain
