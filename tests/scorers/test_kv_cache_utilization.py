from __future__ import annotations

import pytest

from gateway.framework.fleet import EngineMetrics
from scorers.kv_cache_utilization import KvCacheUtilization
from tests.support.candidates import context, endpoint, request


def score(metrics=None, **work) -> float:
    scorer = KvCacheUtilization(KvCacheUtilization.Parameters(capacity=10_000), context())
    return scorer.score(request(), [endpoint(metrics=metrics, **work)])[0]


@pytest.mark.parametrize(("usage", "expected"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.0001, 0.0), (-0.1, 1.0)])
def test_one_less_what_the_engine_reports(usage, expected) -> None:
    assert score(EngineMetrics(at=1.0, kv_usage=usage, kv_capacity=1000), kv_tokens=900) == expected


def test_an_endpoint_never_scraped_is_judged_by_the_ledger() -> None:
    assert score(kv_tokens=2500) == 0.75
    assert score(kv_tokens=20_000) == 0.0


def test_capacity_has_a_range() -> None:
    with pytest.raises(ValueError, match="capacity"):
        KvCacheUtilization.Parameters(capacity=0)
