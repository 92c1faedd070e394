"""What a key, or a tenant, is told about itself: limits and what is left of them, budget, tokens by kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gateway.tenants.accounts import Account
from gateway.tenants.gate import Gate
from gateway.tenants.gcra import MINUTE, Bucket
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import NO_LIMITS
from gateway.tenants.meters import Meter
from gateway.tenants.places import Limit
from gateway.tenants.scope import account_name

PERIODS = ("day", "month", "total")


def usage(gate: Gate, caller: Caller) -> dict[str, Any]:
    """``GET /v1/usage``: of the caller's key, beside the budget, which is its tenant's; of its tenant where it has no
    key of its own."""
    with gate.state:
        account = gate.account(account_name(caller) if caller.key is None else f"key:{caller.key}")
        return {
            "object": "usage",
            "tenant": caller.tenant.name,
            "key": caller.key,
            "limits": [
                _limits(gate, models, meter) for models, meter in gate.meters(caller) if meter.settings != NO_LIMITS
            ],
            "budget": _budget(gate, caller),
            "usage": _periods(gate, account),
        }


def _limits(gate: Gate, models: str, meter: Meter) -> dict[str, Any]:
    place, now = meter.place, gate.clock.monotonic()
    found: dict[str, Any] = {"of": meter.whose, "models": models}
    for name, bucket in (("requests_per_minute", meter.requests), ("tokens_per_minute", meter.tokens)):
        if bucket is not None:
            found[name] = _rate(bucket, now)
    for name, used in (
        ("concurrent", place.concurrent.value),
        ("tokens_in_flight", place.tokens_in_flight.value),
        ("queued", place.queued.value),
    ):
        most = getattr(meter.settings, name)
        if most is not None:
            used += round(place.elsewhere(Limit[name.upper()]))
            found[name] = {"limit": most, "remaining": max(0, most - used)}
    return found


def _rate(bucket: Bucket, now: float) -> dict[str, Any]:
    """``reset``: seconds until all of it is free again."""
    used = bucket.shown(now)
    return {
        "limit": bucket.limit,
        "remaining": max(0, int(bucket.limit - used + 1e-6)),
        "reset": round(used * MINUTE / bucket.limit, 3),
    }


def _budget(gate: Gate, caller: Caller) -> dict[str, Any] | None:
    budget = gate.budget(caller)
    if budget is None:
        return None
    settings = budget.settings
    spent, end = budget.spent, gate.calendar.ends(settings.per)
    return {
        "amount": settings.amount,
        "unit": settings.unit,
        "per": settings.per,
        "period": _period(gate, settings.per),
        "spent": spent,
        "in_flight": budget.in_flight,
        "remaining": max(0.0, settings.amount - spent - budget.in_flight),
        "ends": None if end is None else f"{datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


def _periods(gate: Gate, account: Account) -> dict[str, Any]:
    """``input``: prompt tokens that did not come from an engine's cache."""
    report = {}
    for per in PERIODS:
        used = account.used(per)
        report[per] = {
            "period": _period(gate, per),
            "requests": used.requests,
            "tokens": {"input": used.prompt - used.cached, "cached": used.cached, "output": used.output},
            "cost": used.cost,
        }
    return report


def _period(gate: Gate, per: str) -> str | None:
    return {"day": gate.calendar.day, "month": gate.calendar.month}.get(per)
