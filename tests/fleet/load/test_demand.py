from __future__ import annotations

import pytest

from gateway.fleet.load.demand import LATELY, DemandMeter


def test_a_steady_rate_is_found_from_the_start_and_forgotten() -> None:
    meter = DemandMeter(100.0)
    for step in range(1, 11):
        meter.came(100 + step / 10)
    assert meter.rate(101.0) == pytest.approx(10, rel=0.1)
    for step in range(11, 3001):
        meter.came(100 + step / 10)
    assert meter.rate(400.0) == pytest.approx(10, rel=0.02)
    assert 0 < meter.rate(400.0 + 8 * LATELY) < 0.01
    assert meter.rate(400.0 + 13 * LATELY) == 0


def test_the_mean_of_what_was_placed_lately() -> None:
    meter = DemandMeter(0.0)
    assert (meter.demand(1.0), meter.median) == (None, None)
    for at in range(10):
        meter.placed(at, 1000, 10, 5.0)
    for at in range(1000, 1100):
        meter.came(at)
        meter.placed(at, 300, 100, 20.0)
    demand = meter.demand(1100.0, share=0.5, backlog=3.0)
    assert demand is not None
    assert demand.rate == pytest.approx(2.0, rel=0.1), "half of the requests are seen here"
    assert demand.new == pytest.approx(100)
    assert demand.attention == pytest.approx(100 * 250)
    assert (demand.output, demand.context) == (pytest.approx(20), pytest.approx(310))
    assert demand.variation == pytest.approx(0, abs=1e-6)
    assert demand.backlog == 3.0
    assert meter.median == (100, 300)


def test_prompts_that_differ_vary() -> None:
    meter = DemandMeter(0.0)
    for at in range(1000):
        meter.placed(at, 400, 100 if at % 2 else 300, 0.0)
    demand = meter.demand(1000.0)
    assert demand is not None
    assert demand.variation == pytest.approx(0.25, rel=0.1)
    assert (demand.output, demand.context) == (0.0, 0.0)
