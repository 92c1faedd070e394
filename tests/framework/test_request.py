from __future__ import annotations

import pytest

from gateway.framework import Kind, Match, Matches, Model, Request, Scored
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


def test_a_candidates_terms_are_its_row_of_all_scores() -> None:
    columns = {"prefix": [0.1, 0.9], "load": [1.0, 0.5]}
    scored = Scored(endpoint(0), 1.4, columns, 1)
    assert scored.terms == {"prefix": 0.9, "load": 0.5}
    assert repr(scored) == "<Scored e0 1.4000 {'prefix': 0.9, 'load': 0.5}>"
