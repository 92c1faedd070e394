from __future__ import annotations

from gateway.framework import NoParameters
from gateway.framework.match import Match, Matches
from scorers.prefix_cache import PrefixCache
from tests.support.candidates import context, endpoint, request

FLEET = [endpoint(0), endpoint(1), endpoint(2)]


def scores(asked):
    return PrefixCache(NoParameters(), context()).score(asked, FLEET)


def test_the_share_of_the_prompt_that_is_held() -> None:
    assert scores(request(1000, held={0: 1000, 1: 250})) == [1.0, 0.25, 0.0]


def test_every_tier_counts() -> None:
    asked = request(100)
    asked.matches = Matches({1: Match(gpu=20, cpu=30, storage=10)})
    assert scores(asked) == [0.0, 0.6, 0.0]


def test_a_match_longer_than_the_estimated_prompt_is_all_of_it() -> None:
    assert scores(request(100, held={2: 112})) == [0.0, 0.0, 1.0]


def test_a_request_without_a_prompt_has_no_affinity() -> None:
    assert scores(request(0)) == [0.0, 0.0, 0.0]
