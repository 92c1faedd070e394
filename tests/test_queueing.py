"""Covers: gateway/queueing.py.

What the queues of several models tell other replicas of their charges. Who waits there: ``proxy/serving``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.queueing import SharedCharges
from gateway.sharing.messages import MOST_CHARGES


def charges_of(**tenants: int) -> SharedCharges:
    """Of queues by model, each of which has charged so many tenants 0, 1, 2, ..."""
    queues: dict[str, Any] = {
        model: SimpleNamespace(
            held=SimpleNamespace(
                lines=SimpleNamespace(charges=lambda count=count: {(0, f"t{one}"): float(one) for one in range(count)})
            )
        )
        for model, count in tenants.items()
    }
    return SharedCharges(lambda: queues)


def told(charges: SharedCharges) -> dict[str, set[float]]:
    by_model: dict[str, set[float]] = {}
    for one in charges.take():
        by_model.setdefault(one.model, set()).add(one.amount)
    return by_model


def test_what_has_a_place_is_told() -> None:
    assert told(charges_of(a=1000, b=20, c=0)) == {"a": set(range(1000)), "b": set(range(20))}


def test_models_with_many_tenants_share_what_the_others_leave_and_tell_their_largest() -> None:
    by_model = told(charges_of(a=2000, b=2000, c=24, d=3))
    assert {model: len(amounts) for model, amounts in by_model.items()} == {"a": 498, "b": 499, "c": 24, "d": 3}
    assert min(by_model["a"]) == 2000 - 498
    assert sum(map(len, by_model.values())) == MOST_CHARGES
