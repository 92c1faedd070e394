from __future__ import annotations

import pytest

from gateway.core.clock import ManualClock
from gateway.core.log_limit import MAX_KEYS, PERIOD, LogLimit, left_out


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


def test_a_key_has_one_line_a_minute_and_the_next_tells_what_was_left_out(clock) -> None:
    limit = LogLimit(clock)
    assert [limit.admit("a") for _ in range(4)] == [0, None, None, None]
    clock.now += PERIOD - 0.1
    assert limit.admit("a") is None
    clock.now += 0.1
    assert [limit.admit("a") for _ in range(2)] == [4, None]


def test_keys_do_not_take_each_others_lines(clock) -> None:
    limit = LogLimit(clock)
    assert [limit.admit(key) for key in ("a", "b", "a")] == [0, 0, None]
    assert limit.admit("a", "b") == 0


def test_some_lines_of_a_key_may_come_at_once(clock) -> None:
    limit = LogLimit(clock, most=3)
    assert [limit.admit("a") for _ in range(5)] == [0, 0, 0, None, None]
    clock.now += PERIOD
    assert [limit.admit("a") for _ in range(4)] == [2, 0, 0, None]


def test_keys_beyond_its_bound_share_one(clock) -> None:
    limit = LogLimit(clock)
    said = [limit.admit(str(number)) for number in range(MAX_KEYS + 500)]
    assert said.count(0) == MAX_KEYS + 1
    assert said.count(None) == 499
    assert len(limit) == MAX_KEYS + 1
    clock.now += PERIOD
    assert limit.admit("new") == 0
    assert len(limit) == 1


def test_the_end_of_a_line_says_how_many_there_were() -> None:
    assert left_out(0) == ""
    assert "12 more" in left_out(12)
