"""What a client is told whom a limit or a budget refuses."""

from __future__ import annotations

from gateway.errors import LimitReached
from gateway.tenants.budgets import Budget
from gateway.tenants.meters import Refusal

Headers = list[tuple[str, str]]


def limit_reached(refusal: Refusal, model: str, whose: str, headers: Headers) -> LimitReached:
    """``whose``: the limit is, in words."""
    error = LimitReached(
        f"Rate limit reached for {model} of {whose} on {refusal.unit}: Limit {refusal.most}, "
        f"Used {refusal.used}, Requested {refusal.asked}. Please try again in {refusal.wait:.3g}s.",
        type="tokens" if refusal.reason == "tokens" else "requests",
        reason=refusal.reason,
        retry_after=refusal.wait,
    )
    error.headers = headers
    return error


def budget_spent(budget: Budget, tenant: str, ends_in: float | None, headers: Headers) -> LimitReached:
    """``ends_in``: seconds until the next period; None: there is none."""
    settings = budget.settings
    period = "in all" if settings.per == "total" else f"per {settings.per}"
    error = LimitReached(
        f"The budget of tenant {tenant} is spent: {settings.amount:g} {settings.unit} {period}, "
        f"{budget.spent:g} used and {budget.in_flight:g} in flight. GET /v1/usage tells when the next one begins.",
        type="insufficient_quota",
        reason="budget",
        retry_after=ends_in,
    )
    error.headers = headers
    return error
