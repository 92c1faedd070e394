from __future__ import annotations

import pytest

from gateway.core.observer import NULL_OBSERVER
from gateway.tenants.gate import Gate
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings, PriceSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings
from gateway.tenants.usage import usage


@pytest.fixture
def gate(clock) -> Gate:
    return Gate(lambda: {"m": PriceSettings(1.0, 10.0)}, clock, NULL_OBSERVER)


RED = Caller.of(
    TenantSettings(
        "red",
        limits=LimitSettings(requests_per_minute=60, concurrent=4),
        per_model={"m*": LimitSettings(tokens_per_minute=600)},
        budget=BudgetSettings(1000, per="day"),
    )
)


def keyed(name: str) -> Caller:
    return RED.with_key(TenantKeySettings(name, "0" * 64, "red", limits=LimitSettings(tokens_in_flight=100)))


def test_a_key_sees_its_limits_its_tokens_and_the_budget_of_its_tenant(gate):
    ci, dev = keyed("ci"), keyed("dev")
    gate.admit(ci, "m", 0).settle(30, 10, 5)
    gate.admit(dev, "m", 0).settle(100, 0, 0)
    open_one = gate.admit(ci, "m", 0)
    open_one.exact(40, 20)
    report = usage(gate, ci)
    assert report["limits"] == [
        {
            "of": "tenant red",
            "models": "*",
            "requests_per_minute": {"limit": 60, "remaining": 57, "reset": 3.0},
            "concurrent": {"limit": 4, "remaining": 3},
        },
        {
            "of": "tenant red for m*",
            "models": "m*",
            "tokens_per_minute": {"limit": 600, "remaining": 540, "reset": 6.0},
        },
        {"of": "key ci", "models": "*", "tokens_in_flight": {"limit": 100, "remaining": 40}},
    ]
    assert report["budget"] == {
        "amount": 1000,
        "unit": "tokens",
        "per": "day",
        "period": "2026-11-26",
        "spent": 135.0,
        "in_flight": 60.0,
        "remaining": 805.0,
        "ends": "2026-11-27T00:00:00Z",
    }
    assert (report["object"], report["tenant"], report["key"]) == ("usage", "red", "ci")
    assert report["usage"]["day"] == {
        "period": "2026-11-26",
        "requests": 1,
        "tokens": {"input": 20, "cached": 10, "output": 5},
        "cost": pytest.approx(80e-6),
    }
    assert report["usage"]["month"]["period"] == "2026-11"
    assert report["usage"]["total"]["period"] is None


def test_who_has_no_key_sees_its_tenant(gate):
    gate.admit(keyed("ci"), "m", 0).settle(30, 10, 5)
    report = usage(gate, RED)
    assert report["key"] is None
    assert report["usage"]["total"]["requests"] == 1


def test_who_has_no_limits_sees_none(gate):
    report = usage(gate, Caller.of(TenantSettings("free")))
    assert (report["limits"], report["budget"]) == ([], None)
    assert report["usage"]["total"]["tokens"] == {"input": 0, "cached": 0, "output": 0}
