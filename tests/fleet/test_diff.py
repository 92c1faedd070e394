"""From one configuration's fleet to another's: what goes on, what is undone, and that nothing is in between."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock, SystemClock
from gateway.core.observer import NULL_OBSERVER, Observer
from gateway.errors import ConfigError
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import CostSettings, EndpointSettings, FleetSettings, ScrapeSettings, StartingCosts
from gateway.framework import Endpoint
from gateway.framework.fleet import Model
from tests.fleet.conftest import tiny
from tests.support.fleet import engines_of
from tests.support.ledgers import reserve

Wanted = list[tuple[Model, Sequence[EndpointSettings]]]

ENDPOINTS = st.builds(
    EndpointSettings,
    url=st.sampled_from(["http://a:1", "http://b:1", "http://c:1"]),
    name=st.sampled_from([None, "n", "m"]),
    ranks=st.sampled_from([None, 2]),
    role=st.sampled_from(["both", "prefill"]),
    drain=st.booleans(),
)
WANTED = st.dictionaries(st.sampled_from(["one", "other"]), st.lists(ENDPOINTS, min_size=1, max_size=3), min_size=1)


def fleet_of(wanted: Wanted, observer: Observer = NULL_OBSERVER) -> Fleet:
    return Fleet(wanted, FleetSettings(), ManualClock(), observer, Random(1))


def models(wanted: dict[str, list[EndpointSettings]]) -> Wanted:
    return [(Model(name), endpoints) for name, endpoints in wanted.items()]


def seen(fleet: Fleet) -> list[tuple[object, ...]]:
    return [(e, e.name, e.slot, e.engine, e.role, e.draining, e.model) for e in fleet.all_endpoints]


@given(st.lists(st.tuples(WANTED, st.booleans()), min_size=1, max_size=6))
def test_a_change_is_whole_or_is_none(steps: list[tuple[dict[str, list[EndpointSettings]], bool]]) -> None:
    fleet = fleet_of([])
    for names, apply in steps:
        wanted, before = models(names), seen(fleet)
        engines = engines_of(fleet)
        possible = True
        try:
            fleet_of(wanted)
        except ConfigError:
            possible = False
        try:
            change = asyncio.run(fleet.prepare(wanted))
        except ConfigError:
            assert (seen(fleet), engines_of(fleet)) == (before, engines)
            continue
        assert possible, "what no start would take, no change does"
        there_before = {e for e, *_ in before}
        assert [row for row in seen(fleet) if row[0] in there_before] == before, "nobody notices before it is applied"
        assert all(e.draining for e in fleet.all_endpoints if e not in there_before)
        if not apply:
            fleet.undo(change)
            assert (seen(fleet), engines_of(fleet)) == (before, engines)
            continue
        fleet.apply(change)
        for model, endpoints in wanted:
            there = fleet.endpoints(model)
            assert sorted({e.engine.url for e in there}) == sorted({e.url for e in endpoints})
            assert all(e.model is model for e in there)
            for settings in endpoints:
                of_url = [e for e in there if e.engine.url == settings.url]
                assert len(of_url) == (settings.ranks or 1)
                assert {(e.role, e.draining) for e in of_url} == {(settings.role, settings.drain)}
        assert {e.model.name for e in fleet.all_endpoints} == set(names)
        assert (
            len({e.name for e in fleet.all_endpoints})
            == len({e.slot for e in fleet.all_endpoints})
            == len(fleet.all_endpoints)
        )
        assert {e.engine for e in fleet.all_endpoints} == set(engines_of(fleet))
        assert not any(engine.going or any(b.coming for b in engine.bindings) for engine in fleet._registry.engines)


async def test_what_goes_on_keeps_its_ledger_its_fit_and_an_operators_drain() -> None:
    one = EndpointSettings("http://a:1")
    fleet = fleet_of([(Model("m"), [one])])
    (endpoint,) = fleet.drain("a:1")
    reservation = reserve(endpoint.load, 10, 20)
    again = Model("m", handler="other")
    fleet.apply(await fleet.prepare([(again, [EndpointSettings("http://A:1/", labels={"zone": "z"})])]))
    assert fleet.all_endpoints == [endpoint]
    assert (endpoint.model, endpoint.labels, endpoint.draining) == (again, {"zone": "z"}, True)
    assert endpoint.load.requests == 1
    fleet.restore("a:1")
    assert not endpoint.draining
    reservation.settle()
    with pytest.raises(KeyError):
        fleet.drain("b:1")


async def test_others_run_between_two_new_engines_and_a_change_that_is_cancelled_there_is_none() -> None:
    fleet = fleet_of([(Model("m"), [EndpointSettings("http://a:1")])])
    before, wanted = (
        fleet.all_endpoints,
        [(Model("m"), [EndpointSettings(f"http://b:{port}") for port in range(1, 21)])],
    )
    preparing = asyncio.ensure_future(fleet.prepare(wanted))
    there = []
    while not preparing.done():
        there.append(len(engines_of(fleet)))
        await asyncio.sleep(0)
    assert set(range(2, 22)) <= set(there), "one more at a time"
    fleet.undo(await preparing)
    preparing = asyncio.ensure_future(fleet.prepare(wanted))
    for _ in range(10):
        await asyncio.sleep(0)
    assert 1 < len(engines_of(fleet)) < 21
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert fleet.all_endpoints == before
    assert not fleet.all_endpoints[0].draining
    fleet.undo(await fleet.prepare(wanted))


async def test_who_is_gone_is_shown_until_the_last_request_has_ended() -> None:
    fleet = fleet_of([(Model("m"), [EndpointSettings("http://a:1")])])
    (endpoint,) = fleet.all_endpoints
    reservation = reserve(endpoint.load, 10, 20)
    with fleet.lending(endpoint):
        fleet.apply(await fleet.prepare([(Model("m"), [EndpointSettings("http://b:1")])]))
        assert fleet.all_endpoints[-1] is endpoint
        assert (fleet.drain_state(endpoint).gone, fleet.drain_state(endpoint).running) == (True, 2)
        reservation.settle()
        assert fleet.drain_state(endpoint).running == 1
    assert endpoint not in fleet.all_endpoints


async def test_who_is_gone_is_kept_by_its_requests_only() -> None:
    """What it has learned would count among its peers for as long as it were."""
    fleet = fleet_of([(Model("m"), [EndpointSettings("http://a:1")])])
    (endpoint,) = fleet.all_endpoints
    reservation = reserve(endpoint.load, 10, 20)
    fleet.apply(await fleet.prepare([(Model("m"), [EndpointSettings("http://b:1")])]))
    cost = weakref.ref(fleet.cost(endpoint))
    reservation.settle()
    del endpoint, reservation
    gc.collect()
    assert cost() is None


class Told(Observer):
    def __init__(self) -> None:
        self.states: dict[str, bool] = {}
        self.draining_now: dict[str, bool] = {}

    def engine_state(self, engine: str, up: bool, reason: str) -> None:
        self.states[engine] = up

    def engine_dropped(self, engine: str) -> None:
        del self.states[engine]

    def draining(self, endpoint: str, draining: bool) -> None:
        self.draining_now[endpoint] = draining

    def endpoint_dropped(self, endpoint: str) -> None:
        del self.draining_now[endpoint]


async def test_a_name_that_moves_to_another_engine_keeps_its_series() -> None:
    first, second = await tiny().start(), await tiny().start()
    told = Told()
    settings = FleetSettings(scrape=ScrapeSettings(interval=0.05))
    model = Model("m")
    fleet = Fleet([(model, [EndpointSettings(first.url, name="n")])], settings, SystemClock(), told, Random(1))
    try:
        await fleet.start()
        (before,) = fleet.all_endpoints
        change = await fleet.prepare([(model, [EndpointSettings(second.url, name="n", api_key="k")])])
        coming: Endpoint = next(e for e in fleet.all_endpoints if e is not before)
        assert coming.engine.up, "it was looked at"
        assert (coming.draining, before.draining) == (True, False)
        fleet.apply(change)
        assert fleet.all_endpoints == [coming]
        assert told.states == {"n": True}
        assert told.draining_now == {"n": False}
    finally:
        await fleet.close()
        await first.stop()
        await second.stop()


SLOW = StartingCosts(prefill_token=5e-3)
ONE, OTHER = Model("one"), Model("other")
A, B = "http://a:1", "http://b:1"


def change(fleet: Fleet, wanted: Wanted) -> None:
    fleet.apply(asyncio.run(fleet.prepare(wanted)))


def test_what_the_first_that_is_left_says_of_the_cost_counts() -> None:
    """Whose word counted is gone, and the one that is left is told another cost in the same change, or an earlier."""
    fleet = fleet_of([(ONE, [EndpointSettings(A)]), (OTHER, [EndpointSettings(A)])])
    change(fleet, [(OTHER, [EndpointSettings(A, costs=SLOW)])])
    assert fleet.cost(fleet.endpoints(OTHER)[0]).start.prefill_token == 5e-3
    fleet = fleet_of([(ONE, [EndpointSettings(A)]), (OTHER, [EndpointSettings(A, costs=SLOW)])])
    assert fleet.cost(fleet.endpoints(OTHER)[0]).start.prefill_token != 5e-3
    change(fleet, [(OTHER, [EndpointSettings(A, costs=SLOW)])])
    assert fleet.cost(fleet.endpoints(OTHER)[0]).start.prefill_token == 5e-3


def test_engines_learn_from_those_of_their_own_role_and_start() -> None:
    fleet = fleet_of([(ONE, [EndpointSettings(A), EndpointSettings(B)])])
    first, second = (fleet.cost(endpoint) for endpoint in fleet.endpoints(ONE))

    def learn() -> tuple[float, float]:
        for _ in range(40):
            second.learn_prefill(4000, 0, 3.0, at=0.0)
            second.count_request()
        return first.prefill_scale, second.prefill_scale

    scales = learn()
    assert min(scales) > 3
    change(fleet, [(ONE, [EndpointSettings(A, costs=SLOW), EndpointSettings(B)])])
    assert (first.prefill_scale, second.prefill_scale) == pytest.approx((1, scales[1]), rel=0.01)
    assert learn()[0] == 1
    change(fleet, [(ONE, [EndpointSettings(A), EndpointSettings(B)])])
    assert learn()[0] > 3
    change(fleet, [(ONE, [EndpointSettings(A, role="prefill"), EndpointSettings(B)])])
    assert learn()[0] == 1


def test_what_is_not_fitted_keeps_its_costs_among_engines_that_are() -> None:
    fleet = fleet_of([(ONE, [EndpointSettings(A, cost=CostSettings(fit=False)), EndpointSettings(B)])])
    given, fitted = (fleet.cost(endpoint) for endpoint in fleet.endpoints(ONE))
    before = given.scalars
    for _ in range(40):
        fitted.learn_prefill(4000, 0, 3.0, at=0.0)
        fitted.count_request()
    assert given.scalars == before
    assert fitted.prefill_scale > 3
