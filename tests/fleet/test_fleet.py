"""Covers: gateway/fleet/fleet.py, gateway/fleet/registry.py, gateway/fleet/names.py."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.errors import ConfigError
from gateway.fleet.fleet import Fleet
from gateway.fleet.kv_source import KvSource
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Role
from gateway.framework.fleet import Model, ServedModel
from tests.fleet.conftest import hangs, is_watched
from tests.support.fleet import engines_of, ready
from tests.support.ledgers import reserve
from tests.support.wait import eventually


def make(*models) -> Fleet:
    return Fleet(models, FleetSettings(), SystemClock(), NULL_OBSERVER, Random(1))


def entry(url: str, **options) -> EndpointSettings:
    return EndpointSettings(url=url, **options)


async def change(fleet: Fleet, *models) -> None:
    """As a reload does."""
    fleet.apply(await fleet.prepare(models))


def names(fleet: Fleet, model: Model) -> list[str]:
    return [endpoint.name for endpoint in fleet.endpoints(model)]


def test_endpoints_are_made_of_settings():
    model = Model("m")
    fleet = make((model, [entry("http://a:1", role="prefill", labels={"zone": "x"}), entry("http://b:1", ranks=2)]))
    first, second, third = fleet.endpoints(model)
    assert (first.slot, first.name, first.rank, first.role, first.labels) == (
        0,
        "a:1",
        None,
        Role.PREFILL,
        {"zone": "x"},
    )
    assert (second.slot, second.name, second.rank) == (1, "b:1/0", 0)
    assert (third.slot, third.name, third.rank) == (2, "b:1/1", 1)
    assert second.engine is third.engine
    assert second.load is not third.load
    assert (first.engine.up, first.engine.down_reason) == (False, "not-probed")
    assert first.load is first.core.ledger
    assert fleet.cost(first) is first.cost
    assert ready(fleet, model) == 0
    assert fleet.endpoints(Model("other")) == ()


@pytest.mark.parametrize("url", ["http://A:80", "http://a", "http://a:80/"])
def test_spellings_of_one_url_are_one_engine(url):
    one, other = Model("one"), Model("other")
    fleet = make((one, [entry("http://a:80")]), (other, [entry(url)]))
    assert len(engines_of(fleet)) == 1
    (first,), (second,) = fleet.endpoints(one), fleet.endpoints(other)
    assert first.engine is second.engine
    assert first.slot != second.slot
    # One load and one speed.
    assert first.load is second.load
    assert first.cost is second.cost
    assert (first.name, second.name) == ("a:80", "a:80@other")


def test_names_are_unique():
    one, other = Model("one"), Model("other")
    fleet = make(
        (one, [entry("http://a:1", name="east", ranks=2)]), (other, [entry("http://a:1", name="east", ranks=2)])
    )
    assert names(fleet, one) == ["east/0", "east/1"]
    assert names(fleet, other) == ["east@other/0", "east@other/1"]
    ipv6 = make((one, [entry("http://[fd00::1]:8000")]))
    assert names(ipv6, one) == ["[fd00::1]:8000"]
    assert engines_of(ipv6)[0].url == "http://[fd00::1]:8000"


@pytest.mark.parametrize(
    ("entries", "others", "message"),
    [
        ([entry("http://a:1"), entry("http://a:1/")], [], "listed twice"),
        ([entry("http://a:1", name="x"), entry("http://b:1", name="x")], [], "both have the name x"),
        ([entry("http://a:1"), entry("https://a:1")], [], "both have the name a:1"),
        ([entry("http://a:1", name="x", ranks=2), entry("http://b:1", name="x/1")], [], "both have the name x/1"),
        ([entry("http://a:1", ranks=2)], [entry("http://a:1")], "leaves ranks to the engine, but another model says"),
        ([entry("http://a:1", name="x"), entry("http://b:1")], [entry("http://b:1", name="x")], "both have the name x"),
    ],
)
def test_clashes_are_named(entries, others, message):
    with pytest.raises(ConfigError, match=message):
        make((Model("m"), entries), (Model("n"), others))


def test_keys_belong_to_engines():
    one, other, third = Model("one"), Model("other"), Model("third")
    fleet = make(
        (one, [entry("http://a:1", api_key="k-a"), entry("http://b:1")]),
        (other, [entry("http://a:1")]),
        (third, [entry("http://a:1", api_key="k-3")]),
    )
    assert [endpoint.api_key for endpoint in fleet.endpoints(one)] == ["k-a", None]
    assert [endpoint.api_key for endpoint in fleet.endpoints(other)] == ["k-a"]
    assert [endpoint.api_key for endpoint in fleet.endpoints(third)] == ["k-3"]


def test_names_in_bodies():
    model = Model("m")
    fleet = make((model, [entry("http://a:1")]))
    (endpoint,) = fleet.endpoints(model)
    assert fleet.served_name(endpoint, model) == "m"
    endpoint.engine.served = {
        "sql": ServedModel("sql", parent="base"),
        "base": ServedModel("base"),
        "alias": ServedModel("alias"),
    }
    assert fleet.served_name(endpoint, model) == "base"
    assert fleet.served_name(endpoint, Model("alias")) == "alias"
    assert fleet.served_name(endpoint, Model("m", served_name="given")) == "given"
    assert dict(fleet.adapters(model)) == {"sql": ServedModel("sql", parent="base")}


async def test_one_url_under_two_models_is_scraped_once(engines, fleets, seen):
    engine = await engines(running=4, kv_sources={"0": {"endpoint": "tcp://*:5557"}})
    one, other = Model("tiny"), Model("other")
    fleet = await fleets((one, [entry(engine.url)]), (other, [entry(engine.url, kv_capacity_tokens=77)]))
    (first,), (second,) = fleet.endpoints(one), fleet.endpoints(other)
    assert (ready(fleet, one), ready(fleet, other)) == (1, 1)
    assert engine.count("/v1/models") == 1
    assert (first.metrics.running, second.metrics.running) == (4, 4)
    assert (first.metrics.kv_capacity, second.metrics.kv_capacity) == (1000, 77)
    source = KvSource("tcp://127.0.0.1:5557", rank=0)
    assert seen.told == [
        ("added", first.name),
        ("added", second.name),
        ("source", first.name, source),
        ("source", second.name, source),
    ]
    first.draining = True
    assert (ready(fleet, one), ready(fleet, other)) == (0, 1)


async def test_a_late_listener_hears_what_it_missed(engines, fleets, seen):
    engine = await engines()
    model = Model("tiny")
    fleet = await fleets((model, [entry(engine.url)]), listen=False)
    assert seen.told == []
    fleet.listen(seen)
    (endpoint,) = fleet.endpoints(model)
    assert seen.told == [("added", endpoint.name), ("source", endpoint.name, None)]


async def test_endpoints_come_and_go_at_run_time(engines, fleets, seen):
    first, second = await engines(), await engines()
    model = Model("tiny")
    fleet = await fleets((model, [entry(first.url, api_key="k", bootstrap_port=9000)]))
    before = fleet.endpoints(model)
    (old,) = before
    await change(fleet, (model, [entry(first.url, api_key="k", bootstrap_port=9000), entry(second.url)]))
    _, new = fleet.endpoints(model)
    assert new.slot == 1
    await eventually(lambda: new.engine.up)
    assert before == (old,)
    assert fleet.endpoints(model) == (old, new)

    reservation = reserve(old.load, 1, 1)
    await change(fleet, (model, [entry(second.url)]))
    assert fleet.endpoints(model) == (new,)
    assert [engine.url for engine in engines_of(fleet)] == [second.url]
    assert ("dropped", old.name) in seen.told
    assert set(seen.gone) == {old.engine.name, old.name}, "the engine's series and the endpoint's"
    # What its last requests tell is heard without harm.
    fleet.report_refused(old)
    fleet.report_broken(old, "reset")
    fleet.report_head(old, 0.1)
    assert old.api_key == "k"
    assert fleet.bootstrap_port(old) == 9000
    assert fleet.served_name(old, model) == "tiny"
    fleet.cost(old).learn_step(1, 1, 0.01, at=0.0)
    reservation.settle()
    assert old.load.requests == 0

    await eventually(lambda: not is_watched(old.engine.name))
    assert is_watched(new.engine.name)
    asked = first.count("/metrics")
    scraped = second.count("/metrics")
    await eventually(lambda: second.count("/metrics") > scraped + 4)
    assert first.count("/metrics") <= asked + 1, "at most what was on its way"


async def test_a_slot_is_reused_only_after_it_was_released(engines, fleets):
    engine = await engines()
    model = Model("tiny")
    fleet = await fleets((model, [entry(engine.url)]))
    (old,) = fleet.endpoints(model)
    await change(fleet)
    await change(fleet, (model, [entry(engine.url)]))
    (second,) = fleet.endpoints(model)
    assert second.slot == 1
    with pytest.raises(KeyError):
        fleet.release_slot(1)
    fleet.release_slot(0)
    await change(fleet)
    await change(fleet, (model, [entry(engine.url)]))
    (third,) = fleet.endpoints(model)
    assert third.slot == 0
    assert third.name == old.name


async def test_dropping_one_model_keeps_the_engine_of_the_other(engines, fleets):
    engine = await engines()
    one, other = Model("tiny"), Model("other")
    fleet = await fleets((one, [entry(engine.url)]), (other, [entry(engine.url)]))
    await change(fleet, (other, [entry(engine.url)]))
    assert fleet.endpoints(one) == ()
    assert len(engines_of(fleet)) == 1
    asked = engine.count("/metrics")
    await eventually(lambda: engine.count("/metrics") > asked + 1)
    # A model that joins a known engine knows at once what the other knew.
    await change(fleet, (one, [entry(engine.url)]), (other, [entry(engine.url)]))
    (back,) = fleet.endpoints(one)
    assert back.metrics.at is not None


async def test_close_leaves_nothing_behind(engines):
    engine = await engines()
    model = Model("tiny")
    fleet = make((model, [entry(engine.url), entry("http://127.0.0.1:1")]))
    before = asyncio.all_tasks()
    await fleet.close()
    await fleet.start()
    assert ready(fleet, model) == 1
    await fleet.close()
    assert not {task for task in asyncio.all_tasks() - before if not task.done() and "watch" in task.get_name()}
    fleet.report_refused(fleet.endpoints(model)[0])
    fleet.report_broken(fleet.endpoints(model)[0], "reset")


async def test_a_start_that_is_cancelled_can_be_closed(engines):
    engine = await engines(faults={"/health": hangs})
    fleet = make((Model("tiny"), [entry(engine.url)]))
    starting = asyncio.create_task(fleet.start())
    await eventually(lambda: engine.asked)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await fleet.close()
