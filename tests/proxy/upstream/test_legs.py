"""The table of what a failed leg means."""

from __future__ import annotations

import pytest

from gateway.errors import Exhausted, UpstreamError, UpstreamTimeout
from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.hardware import StartingCosts
from gateway.fleet.load.ledger import Ledger
from gateway.framework import Endpoint, Engine, Model
from gateway.proxy.settings import RetrySettings
from gateway.proxy.upstream.legs import BUDGET_RESERVE, Cause, LegFailed, Retries, RetryBudget


def failure(cause: Cause, slot: int = 0) -> LegFailed:
    endpoint = Endpoint(
        slot=slot,
        name=f"engine-{slot}",
        model=Model("m"),
        engine=Engine(url="http://engine", name="engine"),
        load=Ledger.__new__(Ledger),
        cost=FittedCost(StartingCosts()),
    )
    return LegFailed(cause, endpoint, "detail")


def attempts(limit: int = 2, budget: float = 0.1) -> Retries:
    return Retries(RetrySettings(attempts=limit, budget=budget), RetryBudget(budget))


@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.CONNECT_TIMEOUT, Cause.RESET_UNSENT])
def test_what_was_never_sent_is_free(cause):
    tried = attempts(limit=1, budget=0.0)
    assert all(tried.may_try_another(failure(cause, slot)) for slot in range(50))
    assert tried.failed_on == set(range(50))


@pytest.mark.parametrize("cause", [Cause.STATUS, Cause.HEAD_TIMEOUT])
def test_a_refusal_counts_as_an_attempt(cause):
    tried = attempts(limit=3)
    assert tried.may_try_another(failure(cause, 0))
    assert tried.may_try_another(failure(cause, 1))
    assert not tried.may_try_another(failure(cause, 2))


def test_a_death_after_a_refusal_is_an_attempt_like_any_other():
    tried = attempts(limit=2)
    assert tried.may_try_another(failure(Cause.STATUS, 0))
    assert not tried.may_try_another(failure(Cause.DIED, 1))


@pytest.mark.parametrize("cause", [Cause.DIED, Cause.ENGINE_DEAD, Cause.GARBAGE])
def test_a_request_that_may_kill_engines_gets_one_more_however_many_are_allowed(cause):
    tried = attempts(limit=10)
    assert tried.may_try_another(failure(cause, 0))
    assert not tried.may_try_another(failure(cause, 1))


@pytest.mark.parametrize("cause", [Cause.IDLE_TIMEOUT, Cause.TOTAL_TIMEOUT])
def test_spent_patience_is_not_spent_again(cause):
    assert not attempts().may_try_another(failure(cause))


def test_one_attempt_means_no_second():
    assert not attempts(limit=1).may_try_another(failure(Cause.STATUS))


def test_a_sick_fleet_is_not_hammered():
    budget = RetryBudget(0.1)
    granted = 0
    for _ in range(1000):
        budget.deposit()
        tried = Retries(RetrySettings(), budget)
        granted += tried.may_try_another(failure(Cause.STATUS))
    assert 100 <= granted <= 100 + BUDGET_RESERVE


def test_an_engines_death_under_load_is_not_the_budgets():
    budget = RetryBudget(0.0)
    assert all(Retries(RetrySettings(), budget).may_try_another(failure(Cause.DIED)) for _ in range(1000))


def test_no_budget_means_no_retry():
    assert not RetryBudget(0.0).withdraw()


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_an_error_without_the_engines_address(cause):
    error = failure(cause).error()
    kind = (
        Exhausted
        if cause in (Cause.EXHAUSTED, Cause.FULL)
        else UpstreamTimeout
        if "timeout" in cause
        else UpstreamError
    )
    assert isinstance(error, kind)
    assert error.status == {Exhausted: 503, UpstreamTimeout: 504, UpstreamError: 502}[kind]
    assert "engine-0" not in error.message
