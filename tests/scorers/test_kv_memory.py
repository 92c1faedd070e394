from __future__ import annotations

import pytest

from gateway.framework.fleet import EngineMetrics
from scorers.kv_memory import KvMemory
from tests.support.candidates import context, endpoint, request


def score(metrics=None, **work) -> float:
    scorer = KvMemory(KvMemory.Parameters(capacity=10_000), context())
    return scorer.score(request(), [endpoint(metrics=metrics, **work)])[0]


def test_the_free_fraction_of_what_the_engine_has() -> None:
    metrics = EngineMetrics(at=1.0, kv_usage=0.9, kv_capacity=4000)
    assert score(metrics) == 1.0  # the ledger leads: the scrape is old by the time it is read
    assert score(metrics, kv_tokens=1000) == 0.75
    assert score(metrics, kv_tokens=1000, foreign_kv_tokens=1000.0) == 0.5


def test_more_than_all_of_it_is_zero() -> None:
    assert score(EngineMetrics(at=1.0, kv_capacity=1000), kv_tokens=5000) == 0.0


def test_an_unknown_capacity_is_assumed() -> None:
    assert score(kv_tokens=2500) == 0.75


def test_capacity_has_a_range() -> None:
    with pytest.raises(ValueError, match="capacity"):
        KvMemory.Parameters(capacity=0)
