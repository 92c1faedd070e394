from __future__ import annotations

import pytest

from scorers.network_latency import NetworkLatency
from tests.support.candidates import context, endpoint, request


def test_near_is_one_and_scale_is_a_half() -> None:
    scorer = NetworkLatency(NetworkLatency.Parameters(scale=0.02), context())
    fleet = [endpoint(0, latency=0.0), endpoint(1, latency=0.02), endpoint(2, latency=0.06)]
    assert scorer.score(request(), fleet) == pytest.approx([1.0, 0.5, 0.25])


def test_unmeasured_is_neither_praised_nor_blamed() -> None:
    scorer = NetworkLatency(NetworkLatency.Parameters(), context())
    assert scorer.score(
        request(), [endpoint(0), endpoint(1, latency=0.0005), endpoint(2, latency=0.1)]
    ) == pytest.approx([0.5, 0.952, 0.0909], abs=1e-3)


def test_scale_has_a_range() -> None:
    with pytest.raises(ValueError, match="scale"):
        NetworkLatency.Parameters(scale=0.0)
