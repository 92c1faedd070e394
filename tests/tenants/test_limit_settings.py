from __future__ import annotations

import pytest

from gateway.tenants.limit_settings import BudgetSettings, LimitSettings, PriceSettings


@pytest.mark.parametrize(
    ("kind", "wrong", "named"),
    [
        (LimitSettings, {"requests_per_minute": 0}, "requests_per_minute"),
        (LimitSettings, {"tokens_in_flight": -1}, "tokens_in_flight"),
        (LimitSettings, {"tokens_per_minute": 10**13}, "tokens_per_minute"),
        (BudgetSettings, {"amount": 0.0}, "amount"),
        (BudgetSettings, {"amount": 1e13}, "amount"),
        (PriceSettings, {"input": -1.0, "output": 1.0}, "input"),
        (PriceSettings, {"input": 1.0, "output": 1.0, "cached": -0.1}, "cached"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(kind, wrong, named):
    with pytest.raises(ValueError, match=f"^{named} must be"):
        kind(**wrong)


def test_a_price_is_of_a_million_tokens_and_cached_ones_have_their_own():
    price = PriceSettings(input=0.5, cached=0.05, output=1.5)
    assert price.of(2_000_000, 1_000_000, 0) == pytest.approx(0.55)
    assert price.of(0, 0, 1_000_000) == pytest.approx(1.5)
    assert PriceSettings(input=2.0, output=0.0).of(1_000_000, 1_000_000, 0) == pytest.approx(2.0)
