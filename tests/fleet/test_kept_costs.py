from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.kept import KeptPeers
from gateway.fleet.settings import CostSettings, EndpointSettings
from gateway.framework.fleet import Model
from tests.fleet.conftest import QUICK
from tests.support.wait import eventually

SLOW = 3.0
"""How much slower the last endpoint is."""


@pytest.fixture
async def recalling(model):
    """``await recalling(endpoints, kept)``: a fleet that has started and goes on from what was kept."""
    fleets: list[Fleet] = []

    async def start(endpoints: Sequence[EndpointSettings], kept: Sequence[KeptPeers], fit: int) -> Fleet:
        fleets.append(Fleet([(model, endpoints)], QUICK, SystemClock(), NULL_OBSERVER, Random(1)))
        assert fleets[-1].recall_costs(kept) == fit
        await fleets[-1].start()
        return fleets[-1]

    yield start
    for fleet in fleets:
        await fleet.close()


def teach(fleet: Fleet, model: Model) -> None:
    """All endpoints are seen to be three times as fast as believed, and the last one to be slower than the others."""
    chance, endpoints = Random(1), fleet.endpoints(model)
    for at in range(120):
        for endpoint in endpoints:
            cost = fleet.cost(endpoint)
            scale = (SLOW if endpoint is endpoints[-1] else 1.0) * chance.uniform(0.8, 1.25) / 3
            cost.learn_prefill(1000, 0, scale * 1000 * cost.start.prefill_token, at=float(at))
            cost.count_request()


def scales(fleet: Fleet, model: Model) -> list[float]:
    return [fleet.cost(endpoint).prefill_scale for endpoint in fleet.endpoints(model)]


@pytest.fixture
async def taught(engines, fleets, model):
    """Settings of three engines, what was kept of them, and the scales that it had then."""
    settings = [EndpointSettings(url=(await engines(started=5.0)).url) for _ in range(3)]
    fleet = await fleets((model, settings))
    teach(fleet, model)
    kept = fleet.keep_costs()
    found = scales(fleet, model)
    assert found[0] == pytest.approx(1 / 3, rel=0.2)
    assert found[2] > 1.5 * found[0]
    return settings, kept, found


async def test_a_fleet_goes_on_from_what_another_has_fitted(taught, recalling, model):
    settings, kept, found = taught
    fleet = await recalling(settings, kept, fit=1)
    assert scales(fleet, model) == pytest.approx(found, rel=0.05)


async def test_other_starting_costs_do_not_fit(taught, recalling, model):
    settings, kept, _ = taught
    others = [replace(one, cost=CostSettings(profile="8b-h100")) for one in settings]
    assert scales(await recalling(others, kept, fit=0), model) == [1.0, 1.0, 1.0]


async def test_another_model_does_not_fit(taught, recalling, model):
    settings, kept, _ = taught
    kept = [replace(one, model="another") for one in kept]
    assert scales(await recalling(settings, kept, fit=0), model) == [1.0, 1.0, 1.0]


async def test_an_engine_that_is_new_is_as_all_its_peers_together(taught, recalling, engines, model):
    settings, kept, found = taught
    new = EndpointSettings(url=(await engines(started=5.0)).url)
    fleet = await recalling([*settings, new], kept, fit=1)
    assert scales(fleet, model) == pytest.approx([*found, kept[0].prefill.scale], rel=0.05)


async def test_an_engine_that_is_another_process_by_now_has_its_speed_to_show_anew(taught, recalling, model):
    settings, (group,), _ = taught
    kept = [replace(group, cores=tuple(replace(core, started=4.0) for core in group.cores))]
    fleet = await recalling(settings, kept, fit=1)
    assert scales(fleet, model) == pytest.approx([group.prefill.scale] * 3, rel=0.05)


@pytest.mark.parametrize("started", [5.0, 4.0])
async def test_ranks_that_are_found_by_the_first_scrape_go_on_too(engines, fleets, recalling, model, started):
    engine = await engines(started=5.0, ranks=3)
    settings = [EndpointSettings(url=engine.url)]
    fleet = await fleets((model, settings))
    teach(fleet, model)
    (group,) = fleet.keep_costs()
    found = scales(fleet, model)
    kept = [replace(group, cores=tuple(replace(core, started=started) for core in group.cores))]
    again = await recalling(settings, kept, fit=1)
    await eventually(lambda: len(again.endpoints(model)) == 3)
    wanted = found if started == 5.0 else [group.prefill.scale] * 3
    assert scales(again, model) == pytest.approx(wanted, rel=0.05)


async def test_costs_that_are_not_fitted_are_not_kept(engines, fleets, model):
    settings = [EndpointSettings(url=(await engines()).url, cost=CostSettings(fit=False))]
    fleet = await fleets((model, settings))
    assert fleet.keep_costs() == []
