from __future__ import annotations

from filters.healthy import Healthy
from gateway.framework import NoParameters
from tests.support.candidates import context, endpoint, names, request


def kept(*endpoints):
    return names(Healthy(NoParameters(), context()).filter(request(), endpoints))


def test_down_and_draining_go() -> None:
    assert kept(endpoint(0), endpoint(1, up=False), endpoint(2, draining=True), endpoint(3)) == ["e0", "e3"]


def test_what_only_one_can_serve_goes_there_while_it_drains() -> None:
    bound = request()
    bound.bound = True
    endpoints = [endpoint(0, draining=True), endpoint(1, draining=True, up=False)]
    assert names(Healthy(NoParameters(), context()).filter(bound, endpoints)) == ["e0"]


def test_all_down_leaves_nothing() -> None:
    assert kept(endpoint(0, up=False), endpoint(1, up=False)) == []


def test_slow_start_allows_a_share_of_the_warm_ones_load_plus_one() -> None:
    warm = [endpoint(0, requests=10), endpoint(1, requests=20)]  # mean 15
    assert kept(*warm, endpoint(2, warmth=0.2, requests=4)) == ["e0", "e1", "e2"]
    assert kept(*warm, endpoint(2, warmth=0.2, requests=5)) == ["e0", "e1"]
    assert kept(*warm, endpoint(2, warmth=0.8, requests=5)) == ["e0", "e1", "e2"]


def test_an_idle_fleet_still_lets_one_request_through_to_a_new_engine() -> None:
    assert kept(endpoint(0), endpoint(1, warmth=0.0, requests=1)) == ["e0", "e1"]
    assert kept(endpoint(0), endpoint(1, warmth=0.0, requests=2)) == ["e0"]


def test_where_nothing_is_warm_all_that_are_up_stay() -> None:
    assert kept(endpoint(0, warmth=0.1, requests=50), endpoint(1, warmth=0.5), endpoint(2, up=False)) == ["e0", "e1"]


def test_a_draining_endpoint_does_not_count_as_warm() -> None:
    assert kept(endpoint(0, draining=True, requests=9), endpoint(1, warmth=0.1, requests=9)) == ["e1"]
