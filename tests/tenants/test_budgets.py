from __future__ import annotations

import pytest

from gateway.tenants.accounts import Calendar
from gateway.tenants.budgets import Budget
from gateway.tenants.limit_settings import BudgetSettings
from gateway.tenants.places import OwnState

DAY = 86400.0


@pytest.fixture
def budget(clock):
    def make(amount: float, per: str, unit: str = "tokens") -> Budget:
        return Budget(BudgetSettings(amount, unit, per), OwnState(clock, 1).tally("tenant:red"), Calendar(clock))

    return make


def spend(budget: Budget, tokens: int, cost: float = 0.0) -> None:
    assert budget.spent >= 0
    budget.tally.charge(tokens, 0, 0, cost)


def test_what_is_in_flight_counts_as_if_it_were_spent(budget):
    one = budget(100, "total")
    spend(one, 60)
    assert not one.exhausted
    counter, _ = one.hold(40, 0.0)
    assert one.exhausted
    counter.add(-1)
    assert not one.exhausted


def test_a_budget_begins_anew_with_its_period(budget, clock):
    day, month, total = budget(10, "day"), budget(10, "month"), budget(10, "total")
    for one in (day, month, total):
        spend(one, 10)
    assert [one.exhausted for one in (day, month, total)] == [True, True, True]
    assert day.ends_in(clock.wall()) == DAY / 2
    assert month.ends_in(clock.wall()) == 4.5 * DAY
    assert total.ends_in(clock.wall()) is None
    clock.now += DAY / 2
    assert [one.exhausted for one in (day, month, total)] == [False, True, True]
    clock.now += 4 * DAY
    assert [one.exhausted for one in (day, month, total)] == [False, False, True]


def test_a_budget_in_money_counts_money(budget):
    one = budget(1.0, "month", "money")
    spend(one, 10**6, 0.99)
    assert not one.exhausted
    spend(one, 1, 0.01)
    assert one.exhausted
