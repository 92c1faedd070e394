from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.division import Spending, Told, kept_of_budget, plan, spending, told
from gateway.tenants.gcra import PART, Bucket
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("part", "used", "wanted", "fair", "found"),
    [
        (0.0, 0.0, 0.0, 0.0, (0.0, 12.5)),  # a little to begin with
        (0.0, 0.0, 70.0, 0.0, (0.0, 70.0)),
        (40.0, 30.0, 0.0, 0.0, (40.0, 60.0)),  # twice what is in use
        (60.0, 55.0, 0.0, 0.0, (60.0, 100.0)),
        (100.0, 10.0, 0.0, 0.0, (20.0, 20.0)),  # the rest is not needed
        (100.0, 80.0, 90.0, 50.0, (80.0, 80.0)),  # another one has less than half: what is in use stays
        (100.0, 20.0, 90.0, 50.0, (50.0, 50.0)),
        (40.0, 40.0, 90.0, 50.0, (40.0, 90.0)),  # not above an even share itself
    ],
)
def test_what_a_host_keeps_and_wants(part, used, wanted, fair, found):
    assert plan(100.0, part, used, wanted, fair, 2) == found


@given(*[st.floats(0, 1e6)] * 5, st.integers(1, 100))
@examples(300)
def test_it_never_keeps_more_than_it_has_nor_less_than_it_uses(whole, part, used, wanted, fair, replicas):
    part = min(part, whole)
    used = min(used, part)
    keep, want = plan(whole, part, used, wanted, fair, replicas)
    assert used <= keep <= part
    assert want >= keep


@given(*[st.floats(0, 1e6)] * 3, st.integers(1, 100))
@examples(300)
def test_of_a_budget_it_keeps_what_is_in_flight_and_no_more_than_it_has(may, in_flight, left, replicas):
    kept = kept_of_budget(may, in_flight, left, replicas)
    assert min(may, in_flight) <= kept <= may
    if replicas == 1:
        assert kept == may


def test_what_the_server_answers_is_read():
    assert spending(b"10 20 30") == Spending(10.0, 20.0, 30.0)
    with pytest.raises(ValueError, match=r".*"):
        spending(b"10 20")
    assert told(b"12.500000 3.000000 0.000000 50.000000") == Told(12.5, 3.0, 0.0, 50.0)
    for wrong in (b"", b"1 2 3", b"1 2 3 x", b"1 2 3 4 5"):
        with pytest.raises(ValueError, match=r".*"):
            told(wrong)


def test_parts_of_a_bucket_let_through_no_more_than_the_whole():
    """See ``gcra.Bucket``: parts move at random, and each bucket gives away only what is not in use."""
    chance = random.Random(5)
    whole, now, passed = 600, 0.0, []
    buckets = [Bucket(whole, 0.0) for _ in range(3)]
    for bucket in buckets:
        bucket.hold(whole / 3, 0.0)
    for _ in range(20_000):
        now += chance.expovariate(20)
        bucket = chance.choice(buckets)
        if chance.random() < 0.2:
            other = chance.choice(buckets)
            spare = chance.random() * max(0.0, part(bucket) - bucket.used(now))
            bucket.hold(part(bucket) - spare, now)
            other.hold(part(other) + spare, now)
        elif part(bucket) >= 1 and bucket.wait(1, now) == 0.0:
            bucket.take(1, now)
            passed.append(now)
    assert len(passed) > 600
    for first in range(0, len(passed), 97):
        for last in range(first, len(passed), 89):
            assert last - first + 1 <= whole * (passed[last] - passed[first]) / 60 + whole + 1e-3


def part(bucket) -> float:
    return bucket.cells[PART]
