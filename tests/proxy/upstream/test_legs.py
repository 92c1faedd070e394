"""The table of what a failed leg means: enforced row by row, and ARCHITECTURE.md prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.clock import ManualClock
from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.settings import StartingCosts
from gateway.framework import Endpoint, Engine
from gateway.framework.fleet import Model
from gateway.proxy.settings import RetrySettings
from gateway.proxy.upstream.legs import (
    BUDGET_RESERVE,
    RULES,
    Cause,
    Cost,
    LegFailed,
    NextStep,
    Retries,
    RetryBudget,
    Rule,
)

PAGE = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()


def failure(cause: Cause, slot: int = 0) -> LegFailed:
    endpoint = Endpoint(
        slot=slot,
        name=f"engine-{slot}",
        model=Model("m"),
        engine=Engine(url="http://engine", name="engine"),
        load=Ledger(ManualClock()),
        cost=FittedCost(StartingCosts()),
    )
    return LegFailed(cause, endpoint, "detail")


def attempts(limit: int = 2, budget: float = 0.1) -> Retries:
    return Retries(RetrySettings(attempts=limit, budget=budget), RetryBudget(budget))


@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.CONNECT_TIMEOUT, Cause.RESET_UNSENT])
def test_what_was_never_sent_is_free(cause):
    tried = attempts(limit=1, budget=0.0)
    assert all(tried.charge(failure(cause, slot)) for slot in range(50))
    assert tried.failed_on == set(range(50))


@pytest.mark.parametrize("cause", [Cause.STATUS, Cause.HEAD_TIMEOUT])
def test_a_refusal_counts_as_an_attempt(cause):
    tried = attempts(limit=3)
    assert tried.charge(failure(cause, 0))
    assert tried.charge(failure(cause, 1))
    assert not tried.charge(failure(cause, 2))


def test_a_death_after_a_refusal_is_an_attempt_like_any_other():
    tried = attempts(limit=2)
    assert tried.charge(failure(Cause.STATUS, 0))
    assert not tried.charge(failure(Cause.DIED, 1))


@pytest.mark.parametrize("cause", [Cause.DIED, Cause.ENGINE_DEAD, Cause.GARBAGE])
def test_a_request_that_may_kill_engines_gets_one_more_however_many_are_allowed(cause):
    tried = attempts(limit=10)
    assert tried.charge(failure(cause, 0))
    assert not tried.charge(failure(cause, 1))


@pytest.mark.parametrize("cause", [Cause.IDLE_TIMEOUT, Cause.TOTAL_TIMEOUT])
def test_spent_patience_is_not_spent_again(cause):
    assert not attempts().charge(failure(cause))


def test_one_attempt_means_no_second():
    assert not attempts(limit=1).charge(failure(Cause.STATUS))


def test_a_sick_fleet_is_not_hammered():
    budget = RetryBudget(0.1)
    granted = 0
    for _ in range(1000):
        budget.deposit()
        tried = Retries(RetrySettings(), budget)
        granted += tried.charge(failure(Cause.STATUS))
    assert 100 <= granted <= 100 + BUDGET_RESERVE


def test_an_engines_death_under_load_is_not_the_budgets():
    budget = RetryBudget(0.0)
    assert all(Retries(RetrySettings(), budget).charge(failure(Cause.DIED)) for _ in range(1000))


def test_no_budget_means_no_retry():
    assert not RetryBudget(0.0).withdraw()


ROWS = pytest.mark.parametrize(("cause", "rule"), RULES.items(), ids=str)


def test_every_cause_has_its_row() -> None:
    assert set(RULES) == set(Cause)


@ROWS
def test_what_follows_is_what_the_row_says(cause: Cause, rule: Rule) -> None:
    assert attempts(limit=2, budget=1.0).charge(failure(cause)) == (rule.then is NextStep.ANOTHER)


@ROWS
def test_it_costs_what_the_row_says(cause: Cause, rule: Rule) -> None:
    budget = RetryBudget(0.1)
    tried = Retries(RetrySettings(attempts=100), budget)
    again = [tried.charge(failure(cause, slot)) for slot in range(3)]
    left = 0
    while budget.withdraw():
        left += 1
    expected = {
        (NextStep.ERROR, Cost.NOTHING): ([False] * 3, 0, 0),
        (NextStep.ANOTHER, Cost.NOTHING): ([True] * 3, 0, 0),
        (NextStep.ANOTHER, Cost.ATTEMPT): ([True] * 3, 3, 3),
        (NextStep.ANOTHER, Cost.DEATH): ([True, False, False], 3, 0),
    }
    assert (again, tried.sent, BUDGET_RESERVE - left) == expected[rule.then, rule.cost]


@ROWS
def test_a_failure_that_costs_no_attempt_counts_as_a_death_where_the_row_says_so(cause: Cause, rule: Rule) -> None:
    tried = attempts(limit=10)
    tried.count_deaths(failure(cause))
    assert tried.charge(failure(Cause.DIED, 1)) == (rule.cost is not Cost.DEATH)


@ROWS
def test_another_leg_is_free_only_while_no_engine_may_have_seen_the_request(cause: Cause, rule: Rule) -> None:
    assert cause.sent == rule.seen
    if rule.then is NextStep.ANOTHER:
        assert rule.seen == (rule.cost is not Cost.NOTHING)


@ROWS
def test_the_client_gets_what_the_row_says(cause: Cause, rule: Rule) -> None:
    error = failure(cause).error()
    assert (type(error), error.retry_after) == (rule.said.error, rule.said.retry_after)
    assert error.message == rule.said.message.replace("{cause}", cause)
    assert "engine-0" not in error.message


def test_the_architecture_prints_the_table() -> None:
    rows = []
    for cause, rule in RULES.items():
        error, seen = rule.said.error, "yes" if rule.seen else "no"
        rows.append(
            f"| `{cause}` | {rule.happened} | {rule.then} | {rule.cost} | {seen} "
            f"| `{error.__name__}` {error.status} | {rule.health} |"
        )
    assert [row for row in rows if row not in PAGE] == []
