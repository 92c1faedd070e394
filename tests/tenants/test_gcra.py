from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.gcra import CELLS, COUNT, MINUTE, MOST, RESOLUTION, SLACK, Bucket
from tests.support.examples import examples


def test_a_minute_s_worth_may_be_taken_at_once_and_not_one_more():
    bucket = Bucket(100, 5.0)
    for _ in range(100):
        assert bucket.wait(1, 5.0) == 0.0
        bucket.take(1, 5.0)
    assert bucket.wait(1, 5.0) == pytest.approx(0.6)
    assert bucket.wait(1, 5.0 + 0.59) > 0.0
    assert bucket.wait(1, 5.0 + 0.6) == 0.0


def test_who_waits_as_long_as_was_said_is_let_through():
    bucket, now = Bucket(7, 0.1), 0.1
    for _ in range(1000):
        now += bucket.wait(3, now)
        assert bucket.wait(3, now) == 0.0
        bucket.take(3, now)


def test_more_than_the_bucket_holds_waits_until_it_is_full():
    bucket = Bucket(100, 0.0)
    assert bucket.wait(1000, 0.0) == 0.0
    bucket.take(50, 0.0)
    assert bucket.wait(1000, 0.0) == pytest.approx(30.0)


def test_what_is_given_back_can_be_taken_again():
    bucket = Bucket(100, 0.0)
    mark = bucket.take(100, 0.0)
    bucket.give_back(mark, 60, 0.0)
    assert bucket.used(0.0) == 40
    assert bucket.wait(60, 0.0) == 0.0


def test_what_an_idle_bucket_has_refilled_is_not_given_back_a_second_time():
    bucket = Bucket(100, 0.0)
    old = bucket.take(100, 0.0)
    bucket.take(50, 60.0)
    bucket.give_back(old, 100, 60.0)
    assert bucket.used(60.0) == 50


def test_what_was_needed_beyond_is_a_debt():
    bucket = Bucket(60, 0.0)
    bucket.take(60, 0.0)
    bucket.take(30, 0.0)
    assert bucket.used(0.0) == 90
    assert bucket.wait(1, 0.0) == pytest.approx(31.0)


def test_another_limit_keeps_what_is_used():
    bucket = Bucket(100, 0.0)
    bucket.take(80, 0.0)
    bucket.become(60, 0.0)
    assert bucket.limit == 60
    assert bucket.wait(1, 0.0) == pytest.approx(21.0)
    bucket.become(1000, 0.0)
    assert bucket.wait(900, 0.0) == 0.0


def test_what_it_remembers_is_bounded():
    bucket, now = Bucket(10**6, 0.0), 0.0
    for _ in range(50_000):  # each finds more than all before
        now += 1e-6
        bucket.take(20, now)
    assert bucket.cells[COUNT] <= MOST
    assert len(bucket.cells) == CELLS


# Each step: seconds until it, units that are asked for, which open one ends then (if any), and how much of it was used.
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.01, 0.5, 3.0, 20.0, 70.0]),
        st.integers(1, 60),
        st.integers(0, 5),
        st.floats(0.0, 1.0),
    ),
    max_size=60,
)
LIMITS = st.sampled_from([1, 10, 50, 60, 1000])


@given(LIMITS, STEPS)
@examples(300)
def test_no_window_has_more_than_its_rate_and_one_burst(limit, steps):
    """Of what is used in the end, by when it was let through."""
    bucket, now = Bucket(limit, 0.0), 0.0
    begun: list[list[float]] = []  # when, and units
    running: list[tuple[int, int]] = []
    for passed, amount, ending, share in steps:
        now += passed
        if running:
            mark, index = running.pop(ending % len(running))
            unused = int(begun[index][1] * share)
            bucket.give_back(mark, unused, now)
            begun[index][1] -= unused
        amount = min(amount, limit)
        if bucket.wait(amount, now) == 0.0:
            running.append((bucket.take(amount, now), len(begun)))
            begun.append([now, amount])
        assert 0.0 <= bucket.used(now) <= limit + SLACK, "the theoretical arrival time is within a minute of now"
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            seconds = begun[last][0] - begun[first][0]
            units = sum(amount for _, amount in begun[first : last + 1])
            if last == len(begun) - 1 or begun[last + 1][0] > begun[last][0]:
                assert units <= limit * seconds / MINUTE + limit + 1e-3


@given(LIMITS, STEPS)
@examples(300)
def test_it_is_as_if_the_true_amount_had_been_taken_at_first(limit, steps):
    bucket, now = Bucket(limit, 0.0), 0.0
    taken: list[list[float]] = []
    running: list[tuple[int, int]] = []
    for passed, amount, ending, share in steps:
        now += passed
        if running and ending:
            mark, index = running.pop(ending % len(running))
            unused = int(taken[index][1] * share)
            bucket.give_back(mark, unused, now)
            taken[index][1] -= unused
        running.append((bucket.take(amount, now), len(taken)))
        taken.append([now, amount])
        used, before = 0.0, 0.0
        for at, units in taken:
            used = max(0.0, used - (at - before) * limit / MINUTE) + units
            before = at
        # Backlogs that differ by less than a part of the bucket count as one, which gives back less and never more.
        assert used - 1e-6 <= bucket.used(now) <= used + len(taken) * limit / RESOLUTION + 1e-6
