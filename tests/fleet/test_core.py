from __future__ import annotations

from gateway.fleet.core import Core, Place
from gateway.fleet.cost import FittedCost
from gateway.fleet.hardware import Costs
from gateway.fleet.ledger import Ledger
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Engine, EngineMetrics, Model


def test_a_scrape_reaches_every_endpoint_on_the_core(manual_clock):
    clock = manual_clock()
    core = Core(None, Ledger(clock), FittedCost(Costs()))
    engine = Engine(url="http://e:1", name="e:1")
    for slot, settings in enumerate(
        [EndpointSettings(url="http://e:1"), EndpointSettings(url="http://e:1", kv_capacity_tokens=2000)]
    ):
        model = Model(f"m{slot}")
        core.places.append(Place(slot, f"e{slot}", model, engine, core.ledger, core.cost, core=core, settings=settings))
    core.scraped(EngineMetrics(at=1.0, running=4, kv_usage=0.5, kv_capacity=1000), clock.now)

    first, second = core.places
    assert (first.metrics.running, first.metrics.kv_capacity) == (4, 1000)
    # What the configuration says of the capacity overrules the engine, for the ledger too.
    assert (second.metrics.running, second.metrics.kv_capacity) == (4, 2000)
    assert first.load.foreign_requests == 4
    assert first.load.foreign_kv_tokens == 1000
