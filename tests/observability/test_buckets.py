from __future__ import annotations

import pytest

from gateway.observability import buckets

ALL = {name: bounds for name, bounds in vars(buckets).items() if name.isupper()}


@pytest.mark.parametrize("name", ALL)
def test_bounds_rise_and_are_few(name) -> None:
    bounds = ALL[name]
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] > 0
    # Each is a line for every model in every scrape.
    assert len(bounds) <= 18


def test_the_default_timeouts_are_within_the_last_bucket() -> None:
    assert buckets.TTFT[-1] >= 300  # timeouts.head
    assert buckets.DURATION[-1] >= 3600  # timeouts.total
    assert buckets.QUEUE_WAIT[-1] >= 30  # limits.queue_timeout
    assert buckets.PREFILL_LEG[-1] >= 120  # timeouts.prefill
    assert buckets.HANDOVER[-1] >= 60  # timeouts.handover
