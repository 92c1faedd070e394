from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.tenants.accounts import Account, Calendar
from tests.support.examples import examples


def at(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()


def test_days_and_months_are_those_of_utc():
    clock = ManualClock(at(2026, 12, 31, 23, 59, 59))
    calendar = Calendar(clock)
    assert (calendar.day, calendar.month) == ("2026-12-31", "2026-12")
    assert calendar.ends("day") == calendar.ends("month") == at(2027, 1, 1)
    assert calendar.ends("total") is None
    clock.now = at(2027, 1, 1)
    calendar.look()
    assert (calendar.day, calendar.month) == ("2027-01-01", "2027-01")
    assert calendar.ends("month") == at(2027, 2, 1)


def test_a_clock_that_is_set_back_begins_no_earlier_day():
    clock = ManualClock(at(2026, 11, 26, 0, 0, 1))
    calendar, account = Calendar(clock), Account()
    account.roll(calendar.day)
    account.add(5, 0, 0, 0.0)
    clock.now = at(2026, 11, 25, 23)
    calendar.look()
    account.roll(calendar.day)
    assert account.spent("day", "tokens") == 5
    account.roll("2026-11-25")
    assert account.spent("day", "tokens") == 5


@pytest.mark.parametrize(
    ("day", "spent"), [("2026-11-26", (7, 7, 7)), ("2026-11-27", (0, 7, 7)), ("2026-12-01", (0, 0, 7))]
)
def test_what_is_used_counts_in_its_day_in_its_month_and_for_ever(day, spent):
    account = Account()
    account.roll("2026-11-26")
    account.add(4, 1, 3, 0.5)
    account.roll(day)
    assert tuple(account.spent(per, "tokens") for per in ("day", "month", "total")) == spent
    assert account.spent("total", "money") == 0.5


DAYS = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 30, 400]), st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=40
)


@given(DAYS)
@examples(200)
def test_it_is_the_sum_of_what_was_added_in_the_period(steps):
    account, number = Account(), at(2026, 1, 30) // 86400
    entries = []
    for days, prompt, output in steps:
        number += days
        day = f"{datetime.fromtimestamp(number * 86400, UTC):%Y-%m-%d}"
        account = msgspec.json.decode(msgspec.json.encode(account), type=Account)
        account.roll(day)
        account.add(prompt, prompt // 2, output, 0.25)
        entries.append((day, prompt + output))
    for per, length in (("day", 10), ("month", 7), ("total", 0)):
        expected = [tokens for when, tokens in entries if when[:length] == day[:length]]
        assert account.spent(per, "tokens") == sum(expected)
        assert account.spent(per, "money") == account.used(per).cost == 0.25 * len(expected)
        used = account.used(per)
        assert used.prompt + used.output == sum(expected)
