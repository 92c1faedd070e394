"""Covers: gateway/fleet/engine_watch.py, gateway/fleet/inspector.py."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.fleet import inspector
from gateway.fleet.engine_watch import TOGETHER
from gateway.fleet.health import BREAKS, COLDEST
from gateway.fleet.kv_source import KvSource
from gateway.fleet.settings import EndpointSettings, FleetSettings, HealthSettings, KvEventsSettings, ScrapeSettings
from gateway.framework.fleet import Model, ServedModel
from tests.fleet.conftest import hangs, says
from tests.support.ledgers import reserve
from tests.support.wait import eventually

SLOW = FleetSettings(
    scrape=ScrapeSettings(interval=3600, timeout=10),
    health=HealthSettings(failures=2, backoff=0.004),
)


@pytest.fixture
async def watched(engines, fleets):
    """An engine, its fleet, and the endpoints on it."""

    async def start(endpoint=None, fleet=None, **options):
        engine = await engines(**options)
        model = Model("tiny")
        settings = EndpointSettings(url=engine.url, **(endpoint or {}))
        running = await fleets((model, [settings]), **(fleet or {}))
        return engine, running, running.endpoints(model)

    return start


@pytest.fixture
async def two(engines, fleets):
    """An engine, a fleet in which it has a companion, and the endpoints of both: the last one is never out."""

    async def start(**fleet):
        first, second = await engines(), await engines()
        model = Model("tiny")
        running = await fleets((model, [EndpointSettings(url=engine.url) for engine in (first, second)]), **fleet)
        return first, running, running.endpoints(model)

    return start


async def test_after_the_start_all_is_known(watched, seen):
    engine, _, (endpoint,) = await watched(fleet={"settings": SLOW}, running=2, waiting=1, kv_usage=0.5, started=123.5)
    assert endpoint.engine.up
    assert endpoint.engine.down_reason == ""
    assert endpoint.engine.version == "0.32.0"
    assert endpoint.engine.served == {"tiny": ServedModel("tiny")}
    assert endpoint.engine.started == 123.5
    assert 0 < endpoint.engine.latency < 10
    assert (endpoint.metrics.running, endpoint.metrics.waiting) == (2, 1)
    assert (endpoint.metrics.kv_capacity, endpoint.metrics.block_size) == (1000, 16)
    assert endpoint.load.foreign_requests == pytest.approx(3, rel=0.01)
    assert endpoint.warmth == 1.0
    assert seen.states == [(f"127.0.0.1:{engine.port}", True, "")]
    assert seen.told == [("added", endpoint.name), ("source", endpoint.name, None)]


async def test_it_is_scraped_again_and_again(watched, seen):
    engine, _, (endpoint,) = await watched()
    engine.running = 9
    await eventually(lambda: endpoint.metrics.running == 9)
    await eventually(lambda: engine.count("/metrics") > 5)
    # The rest is asked once.
    assert engine.count("/v1/models") == engine.count("/version") == engine.count("/health") == 1
    assert all(ok for _, ok in seen.scrapes)


async def test_an_engine_that_dies_and_returns(watched, seen):
    engine, _, (endpoint,) = await watched()
    seen.peek = lambda: endpoint.warmth
    await engine.stop()
    await eventually(lambda: not endpoint.engine.up)
    await eventually(lambda: endpoint.engine.down_reason == "refused")
    engine.models = [{"id": "newer"}]
    await engine.start()
    await eventually(lambda: endpoint.engine.up)
    assert seen.peeked[-1] == COLDEST
    assert list(endpoint.engine.served) == ["newer"]
    await eventually(lambda: endpoint.warmth == 1.0)
    assert seen.scrapes[0][1]
    assert not all(ok for _, ok in seen.scrapes)
    assert seen.states[-1][1:] == (True, "")
    # The same process answers, for all we can tell: nothing of its cache is lost.
    assert not any(told[0] == "restarted" for told in seen.told)


async def test_an_engine_that_is_down_at_the_start(engines, fleets):
    engine = await engines()
    await engine.stop()
    model = Model("tiny")
    fleet = await fleets((model, [EndpointSettings(url=engine.url)]))
    (endpoint,) = fleet.endpoints(model)
    assert (endpoint.engine.up, endpoint.engine.down_reason) == (False, "refused")
    await engine.start()
    await eventually(lambda: endpoint.engine.up)
    # It is new to us, not back: it has its full share at once.
    assert endpoint.warmth == 1.0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(says("", status=500), "status-500"), (says("<html>", status=200), "garbage"), (says("", status=200), "garbage")],
)
async def test_failed_scrapes_take_it_out(two, fault, reason):
    engine, _, (endpoint, other) = await two()
    engine.faults["/metrics"] = fault
    await eventually(lambda: not endpoint.engine.up)
    assert endpoint.engine.down_reason == reason
    engine.faults.clear()
    await eventually(lambda: endpoint.engine.up)
    assert other.engine.up


async def test_the_last_one_is_used_all_the_same(watched, seen, caplog):
    engine, _, (endpoint,) = await watched()
    engine.faults["/metrics"] = says("", status=500)
    await eventually(lambda: endpoint.engine.down_reason == "status-500")
    assert (endpoint.engine.up, endpoint.engine.spared, endpoint.warmth) == (True, True, 1.0)
    assert seen.states[-1][1:] == (False, "status-500"), "and it is told that it is not healthy"
    assert "but still used" in caplog.text
    engine.faults.clear()
    await eventually(lambda: not endpoint.engine.spared)
    assert (endpoint.engine.up, endpoint.engine.down_reason, endpoint.warmth) == (True, "", 1.0)
    engine.faults["/metrics"] = says("", status=500)
    await eventually(lambda: endpoint.engine.spared)
    await engine.stop()
    await eventually(lambda: not endpoint.engine.up)
    assert (endpoint.engine.spared, endpoint.engine.down_reason) == (False, "refused")


async def test_half_of_a_models_endpoints_stay_out_at_most(engines, fleets):
    """Two of three fail: who did first is out, and who did then is used. Draining one of them changes the half."""
    servers, model = [await engines() for _ in range(3)], Model("tiny")
    fleet = await fleets((model, [EndpointSettings(url=server.url) for server in servers]))
    first, second, third = (endpoint.engine for endpoint in fleet.endpoints(model))
    servers[0].faults["/metrics"] = says("", status=500)
    await eventually(lambda: not first.up)
    servers[1].faults["/metrics"] = says("", status=500)
    await eventually(lambda: second.spared)
    assert (first.up, second.up, third.up) == (False, True, True)
    fleet.drain(third.name)
    assert (first.up, second.up) == (False, True)
    fleet.drain(second.name)
    assert first.spared, "it is all that there is"
    fleet.restore(third.name)
    assert not first.up
    servers[0].faults.clear()
    await eventually(lambda: first.up and not first.spared)


async def test_some_engines_are_scraped_in_the_same_moment_and_others_in_another(fleets):
    """Together they cost an idle gateway less; all at once they would hold up what it relays."""
    endpoints = [EndpointSettings(url=f"http://127.0.0.1:{port}") for port in range(1, 3 * TOGETHER + 1)]
    fleet = await fleets((Model("tiny"), endpoints), settings=SLOW)
    watches = [fleet._registry.watches[endpoint.engine] for endpoint in fleet.endpoints(Model("tiny"))]
    moments = [watch._offset / SLOW.scrape.interval for watch in watches]
    groups = [set(moments[first : first + TOGETHER]) for first in range(0, 3 * TOGETHER, TOGETHER)]
    assert [len(group) for group in groups] == [1, 1, 1]
    first, second, third = sorted(moment for group in groups for moment in group)
    assert min(second - first, third - second, first + 1 - third) > 0.2, "far from each other"
    for watch in watches:
        seconds = watch._until_turn(1.0)
        assert 1.0 < seconds <= 3600.0
        at = (asyncio.get_running_loop().time() + seconds - watch._offset) % 3600
        assert seconds == 3600.0 or min(at, 3600 - at) < 10, "at its moment"


async def test_an_engine_that_hangs_delays_the_start_by_the_timeout_only(engines, fleets):
    hanging = await engines(faults={"/metrics": hangs})
    good = await engines()
    model = Model("tiny")
    settings = FleetSettings(scrape=ScrapeSettings(interval=0.02, timeout=1.0))
    fleet = await fleets((model, [EndpointSettings(url=e.url) for e in (hanging, good)]), settings=settings)
    first, second = fleet.endpoints(model)
    assert not first.engine.up
    await eventually(lambda: second.engine.up)
    await eventually(lambda: first.engine.down_reason == "timeout")


async def test_a_refused_request_takes_it_out_at_once(watched, seen):
    _, fleet, (endpoint,) = await watched()
    seen.peek = lambda: endpoint.warmth
    fleet.report_refused(endpoint)
    assert (endpoint.engine.up, endpoint.engine.down_reason) == (False, "refused")
    await eventually(lambda: endpoint.engine.up)
    assert seen.peeked[-1] == COLDEST


async def test_a_broken_answer_is_looked_into_at_once(watched):
    engine, fleet, (endpoint,) = await watched(fleet={"settings": SLOW})
    asked = engine.count("/metrics")
    engine.faults["/health"] = says("", status=503)
    for _ in range(BREAKS - 1):
        fleet.report_broken(endpoint, "reset")
    await eventually(lambda: not endpoint.engine.up)
    assert endpoint.engine.down_reason == "unhealthy"
    assert engine.count("/metrics") == asked
    engine.faults.clear()
    await eventually(lambda: endpoint.engine.up)


async def test_a_broken_answer_of_a_good_engine_changes_nothing(watched):
    engine, fleet, (endpoint,) = await watched(fleet={"settings": SLOW})
    asked = engine.count("/metrics")
    fleet.report_broken(endpoint, "reset")
    await eventually(lambda: engine.count("/metrics") > asked)
    assert endpoint.engine.up


async def test_answers_that_keep_breaking_off_take_it_out(two):
    _, fleet, (endpoint, _) = await two()
    for _ in range(BREAKS + 1):
        fleet.report_complete(endpoint)
    for _ in range(BREAKS):
        fleet.report_broken(endpoint, "reset")
    assert endpoint.engine.up
    fleet.report_broken(endpoint, "reset")
    assert (endpoint.engine.up, endpoint.engine.down_reason) == (False, "broken-answers")
    await eventually(lambda: endpoint.engine.up)


async def test_what_is_under_way_counts_as_good_so_far(two):
    """Of a burst, what breaks is heard of first."""
    _, fleet, (endpoint, _) = await two()
    for _ in range(2 * BREAKS):
        reserve(endpoint.load, prefill_tokens=1, kv_tokens=1)
    for _ in range(2 * BREAKS - 1):
        fleet.report_broken(endpoint, "reset")
    assert endpoint.engine.up
    fleet.report_broken(endpoint, "reset")
    assert not endpoint.engine.up


async def test_a_long_queue_is_no_broken_engine(two):
    """A prefill engine whose queue exceeds the timeout answers others meanwhile."""
    _, fleet, (endpoint, _) = await two()
    fleet.report_head(endpoint)
    for _ in range(10 * BREAKS):
        fleet.report_broken(endpoint, "head-timeout", 60.0)
    assert endpoint.engine.up


async def test_an_engine_that_answers_nobody_is_broken(two):
    _, fleet, (endpoint, _) = await two()
    fleet.report_head(endpoint)
    for _ in range(BREAKS):
        fleet.report_broken(endpoint, "head-timeout", 0.0)
    assert (endpoint.engine.up, endpoint.engine.down_reason) == (False, "broken-answers")


async def test_latency_is_a_running_mean(watched):
    _, fleet, (endpoint,) = await watched(fleet={"settings": SLOW})
    endpoint.engine.latency = None
    fleet.report_head(endpoint, 0.1)
    assert endpoint.engine.latency == 0.1
    fleet.report_head(endpoint, 0.2)
    assert endpoint.engine.latency == pytest.approx(0.12)
    fleet.report_head(endpoint)
    assert endpoint.engine.latency == pytest.approx(0.12)


async def test_a_sleeping_engine_is_out_until_it_wakes(watched, seen):
    engine, _, (endpoint,) = await watched()
    engine.awake = False
    await eventually(lambda: not endpoint.engine.up)
    assert endpoint.engine.down_reason == "asleep"
    models = engine.count("/v1/models")
    engine.awake = True
    await eventually(lambda: endpoint.engine.up)
    assert engine.count("/v1/models") == models + 1
    assert seen.told.count(("asleep", endpoint.name)) == 1
    engine.awake = False
    await eventually(lambda: seen.told.count(("asleep", endpoint.name)) == 2)


async def test_that_it_serves_other_names_is_told_once(watched, monkeypatch):
    monkeypatch.setattr(inspector, "REFRESH", 0.0)
    engine, fleet, (endpoint,) = await watched()
    told = []
    fleet.when_changed(lambda: told.append(list(endpoint.engine.served)))
    engine.models = [{"id": "tiny"}, {"id": "sql", "parent": "tiny"}]
    await eventually(lambda: told, within=30)
    asked = engine.count("/v1/models")
    await eventually(lambda: engine.count("/v1/models") > asked + 1, within=30)
    assert told == [["tiny", "sql"]]


@pytest.mark.parametrize("change", [{"started": 2.0}, {"queries": 1.0}])
async def test_a_restart_is_noticed_without_a_failed_scrape(watched, seen, change):
    engine, _, (endpoint,) = await watched(queries=5.0, kv_sources={"0": {"endpoint": "tcp://*:5557"}})
    engine.kv_sources = {"0": {"endpoint": "tcp://*:6557"}}
    engine.models = [{"id": "tiny"}, {"id": "sql", "parent": "tiny"}]
    evidence = endpoint.cost._prefill
    for name, value in change.items():
        setattr(engine, name, value)
    await eventually(lambda: len(seen.told) == 4)
    assert seen.told == [
        ("added", endpoint.name),
        ("source", endpoint.name, KvSource("tcp://127.0.0.1:5557", rank=0)),
        ("restarted", endpoint.name),
        ("source", endpoint.name, KvSource("tcp://127.0.0.1:6557", rank=0)),
    ]
    assert list(endpoint.engine.served) == ["tiny", "sql"]
    assert endpoint.engine.up
    assert endpoint.cost._prefill is not evidence, "its speed has yet to be seen"


async def test_what_an_engine_looks_up_is_counted_on_over_a_restart(watched, seen):
    engine, _, (endpoint,) = await watched(queries=500.0)
    counted = (endpoint.name, "own")
    await eventually(lambda: counted in seen.lookups)
    assert seen.lookups[counted] == 0, "that was before we came"
    engine.queries = 530.0
    await eventually(lambda: seen.lookups[counted] == 30)
    engine.started, engine.queries = 99.0, 540.0
    await eventually(lambda: seen.lookups[counted] == 570)


async def test_a_restart_while_it_was_down(watched, seen):
    engine, _, (endpoint,) = await watched()
    await engine.stop()
    await eventually(lambda: not endpoint.engine.up)
    engine.started = 99.0
    await engine.start()
    await eventually(lambda: endpoint.engine.up)
    assert ("restarted", endpoint.name) in seen.told
    assert endpoint.engine.started == 99.0


async def test_ranks_share_one_scrape_and_have_each_their_own(watched, seen):
    engine, _, endpoints = await watched(
        endpoint={"ranks": 2},
        ranks=2,
        first_rank=4,
        running=1,
        kv_sources={"4": {"endpoint": "tcp://*:5561"}, "5": {"endpoint": "tcp://*:5562"}},
    )
    assert [endpoint.rank for endpoint in endpoints] == [0, 1]
    assert [endpoint.metrics.running for endpoint in endpoints] == [1, 2]
    assert endpoints[0].load is not endpoints[1].load
    assert [told[2].address for told in seen.told if told[0] == "source"] == [
        "tcp://127.0.0.1:5561",
        "tcp://127.0.0.1:5562",
    ]
    assert engine.count("/v1/models") == 1


async def test_transfers_of_kv_are_told_per_endpoint_where_there_is_a_connector(watched, seen):
    engine, _, endpoints = await watched(endpoint={"ranks": 2}, ranks=2, expired=4.0, fetching={"in_progress": 3})
    plain, _, _ = await watched()
    names = [endpoint.name for endpoint in endpoints]
    assert seen.transfers == {names[0]: (4, {"in_progress": 3}), names[1]: (5, {"in_progress": 3})}
    assert endpoints[1].metrics.kv_expired == 5
    # A restart without it: its last figures do not stand for ever.
    engine.expired, engine.fetching, engine.started = None, {}, 2.0
    await eventually(lambda: seen.transfers == dict.fromkeys(names, (0, {})))
    seen.transfers.clear()
    asked = engine.count("/metrics"), plain.count("/metrics")
    await eventually(lambda: engine.count("/metrics") > asked[0] + 2 and plain.count("/metrics") > asked[1] + 2)
    assert seen.transfers == {}


async def test_ranks_that_are_not_as_configured_are_told_once(watched, caplog):
    engine, _, endpoints = await watched(endpoint={"ranks": 3}, ranks=2)
    await eventually(lambda: engine.count("/metrics") > 3)
    assert caplog.text.count("it has 2 data-parallel ranks, the configuration says 3") == 1
    assert endpoints[2].metrics.at is None


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ({"endpoint": "tcp://*:7000", "replay": "tcp://*:7100"}, ("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7100")),
        ({"enabled": False}, None),
    ],
)
async def test_configured_events_are_not_asked_for(watched, seen, events, expected):
    engine, _, (endpoint,) = await watched(
        endpoint={"ranks": 1, "kv_events": KvEventsSettings(**events)}, kv_sources={"0": {"endpoint": "tcp://*:5557"}}
    )
    assert engine.count("/kv_event_sources") == 0
    assert seen.told[1:] == [("source", endpoint.name, KvSource(*expected) if expected else None)]


async def test_what_only_helps_may_fail(watched, seen):
    _, _, (endpoint,) = await watched(
        faults={"/kv_event_sources": says("", status=500), "/version": says("", status=500)}
    )
    assert endpoint.engine.up
    assert endpoint.engine.version is None
    assert seen.told == [("added", endpoint.name)]


async def test_an_engine_without_its_list_of_models_is_not_up_yet(watched):
    engine, _, (endpoint,) = await watched(faults={"/v1/models": says("", status=503)})
    assert (endpoint.engine.up, endpoint.engine.down_reason) == (False, "status-503")
    engine.faults.clear()
    await eventually(lambda: endpoint.engine.up)
    assert list(endpoint.engine.served) == ["tiny"]


async def test_an_engine_that_wants_a_key_we_lack(watched, caplog):
    _, _, (endpoint,) = await watched(key="s3cret")
    # Clients may have the key and be let through: that is theirs to find out.
    assert endpoint.engine.up
    assert endpoint.engine.served == {}
    assert "does it need an api_key?" in caplog.text


async def test_the_engines_key_is_used_and_not_logged(watched, caplog):
    caplog.set_level(logging.DEBUG)
    engine, _, (endpoint,) = await watched(endpoint={"api_key": "s3cret"}, key="s3cret")
    assert list(endpoint.engine.served) == ["tiny"]
    assert set(engine.keys) == {"Bearer s3cret"}
    assert "s3cret" not in caplog.text


async def test_the_watch_survives_its_own_faults(watched, caplog, monkeypatch):
    _, _, (endpoint,) = await watched()
    with monkeypatch.context() as patched:
        patched.setattr("gateway.fleet.engine.EngineCore.apply_scrape", lambda *_: 1 / 0)
        await eventually(lambda: endpoint.engine.down_reason == "internal")
    await eventually(lambda: not endpoint.engine.down_reason)
    assert "the watch failed" in caplog.text
