"""The factor of an endpoint sinks only where first tokens are really late, and comes back."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.flow.window import FLOOR, SLACK, TOLERANCE, Windows
from tests.support.candidates import endpoint
from tests.support.examples import examples


def test_an_engine_three_times_slower_than_believed_has_a_small_window_within_20_prompts():
    windows, slow = Windows(adapt=True), endpoint()
    for _ in range(20):
        windows.first_token(slow, 0.5, 1.5)
    assert windows.factor(slow) < 0.25
    for _ in range(200):
        windows.first_token(slow, 0.5, 1.5)
    assert windows.factor(slow) == FLOOR


def test_first_tokens_within_the_tolerance_change_nothing():
    windows, one = Windows(adapt=True), endpoint()
    for predicted in (0.0, 0.01, 0.3, 20.0):
        windows.first_token(one, predicted, TOLERANCE * (predicted + SLACK))
        windows.first_token(one, predicted, 0.001)
    assert windows.factor(one) == 1.0


def test_an_endpoint_that_is_as_predicted_again_comes_back():
    windows, one = Windows(adapt=True), endpoint()
    for _ in range(100):
        windows.first_token(one, 0.1, 10.0)
    seen = [windows.factor(one)]
    while seen[-1] < 1.0:
        windows.first_token(one, 0.1, 0.1)
        seen.append(windows.factor(one))
    assert seen == sorted(seen)
    assert len(seen) < 60


def test_one_first_token_that_comes_very_late_is_one_event():
    windows, one = Windows(adapt=True), endpoint()
    windows.first_token(one, 0.1, 3600.0)
    assert windows.factor(one) == pytest.approx(0.9)


def test_one_in_ten_that_comes_late_by_chance_does_not_add_up():
    windows, one = Windows(adapt=True), endpoint()
    for number in range(1000):
        windows.first_token(one, 0.1, 5.0 if number % 10 == 0 else 0.1)
    assert windows.factor(one) >= 0.9


def test_each_endpoint_has_its_own_and_whoever_gets_its_slot_begins_anew():
    windows, slow, other = Windows(adapt=True), endpoint(0), endpoint(1)
    windows.first_token(slow, 0.1, 9.0)
    assert windows.factor(slow) < 1.0
    assert windows.factor(other) == 1.0
    successor = endpoint(0)
    successor.name = "another"
    assert windows.factor(successor) == 1.0
    windows.first_token(successor, 0.1, 0.1)
    assert windows.factor(successor) == 1.0


def test_it_can_be_turned_off():
    windows, slow = Windows(adapt=False), endpoint()
    windows.first_token(slow, 0.1, 9.0)
    assert windows.factor(slow) == 1.0


@given(st.lists(st.tuples(st.floats(), st.floats())))
@examples(200)
def test_whatever_is_observed_it_is_within_its_bounds(observed):
    windows, one = Windows(adapt=True), endpoint()
    for predicted, seconds in [*observed, (nan, 1.0), (1.0, inf), (-1.0, 1.0), (1.0, 0.0)]:
        windows.first_token(one, predicted, seconds)
        assert FLOOR <= windows.factor(one) <= 1.0
