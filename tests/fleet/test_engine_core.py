from __future__ import annotations

import pytest

from gateway.fleet.address import Address, Location, TlsContexts
from gateway.fleet.engine import EngineCore, FleetEngine, ModelBinding
from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.settings import EndpointSettings, StartingCosts
from gateway.framework.fleet import EngineMetrics, Model

URL = "http://e:1"


def core_of(clock, *settings: EndpointSettings) -> EngineCore:
    """An engine's only core, with an endpoint for each of ``settings``, which are of as many models."""
    address = Address.of(settings[0], TlsContexts())
    engine = FleetEngine(url=URL, name="e:1", location=Location.of(URL), address=address, configured_ranks=None)
    core = EngineCore(None, Ledger(clock), FittedCost(StartingCosts()))
    for slot, of_model in enumerate(settings):
        engine.add_endpoint(ModelBinding(Model(f"m{slot}"), engine, of_model, f"e{slot}"), core, slot)
    return core


def test_a_scrape_reaches_every_endpoint_on_the_core(manual_clock):
    clock = manual_clock()
    core = core_of(clock, EndpointSettings(url=URL), EndpointSettings(url=URL, kv_capacity_tokens=2000))
    core.apply_scrape(EngineMetrics(at=1.0, running=4, kv_usage=0.5, kv_capacity=1000), clock.now)

    first, second = core.endpoints
    assert (first.metrics.running, first.metrics.kv_capacity) == (4, 1000)
    # What the configuration says of the capacity overrules the engine, for the ledger too.
    assert (second.metrics.running, second.metrics.kv_capacity) == (4, 2000)
    assert first.load.foreign_requests == 4
    assert first.load.foreign_kv_tokens == 1000


@pytest.mark.parametrize(
    ("capacities", "used"), [((2000, None), 1000), ((None, 2000), 1000), ((2000, 4000), 1000), ((None, None), 500)]
)
def test_the_first_capacity_that_is_configured_is_the_ledgers(manual_clock, capacities, used):
    """Models on one core have one cache: whichever is configured last must not take the capacity away from it."""
    clock = manual_clock()
    core = core_of(clock, *(EndpointSettings(url=URL, kv_capacity_tokens=capacity) for capacity in capacities))
    core.apply_scrape(EngineMetrics(at=1.0, running=4, kv_usage=0.5, kv_capacity=1000), clock.now)
    assert core.ledger.foreign_kv_tokens == used
    assert [endpoint.metrics.kv_capacity for endpoint in core.endpoints] == [each or 1000 for each in capacities]
