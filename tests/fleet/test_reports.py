"""Covers: gateway/fleet/reports.py, gateway/fleet/report.py, gateway/fleet/engine_watch.py, gateway/fleet/inspector.py,
gateway/fleet/engine_figures.py.

Fleets of several workers of a host, each with a seat, in one process: one asks the engines, the others adopt it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from gateway.core.clock import SystemClock
from gateway.fleet.fleet import Fleet
from gateway.fleet.kv_source import KvSource
from gateway.fleet.settings import EndpointSettings, FleetSettings, HealthSettings, ScrapeSettings
from gateway.framework.fleet import Model, ServedModel
from gateway.sharing.seat import Seat
from gateway.sharing.siblings import Siblings
from tests.fleet.conftest import Seen
from tests.support.wait import eventually

QUICK = FleetSettings(
    scrape=ScrapeSettings(interval=0.02, timeout=10.0),
    health=HealthSettings(failures=2, backoff=0.004, slow_start=0.2),
)
SLOW = FleetSettings(scrape=ScrapeSettings(interval=3600, timeout=10), health=HealthSettings(failures=2, backoff=3600))
SOURCES = {"0": {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": ""}}


class Worker:
    """``wanted``: URLs of the endpoints of its model."""

    def __init__(self, seat: Seat, settings: FleetSettings, *wanted: str) -> None:
        self.seen = Seen()
        self.model = Model("tiny")
        self.siblings = Siblings(seat, SystemClock(), self.seen)
        endpoints = [EndpointSettings(url) for url in wanted]
        self.fleet = Fleet([(self.model, endpoints)], settings, SystemClock(), self.seen, Random(1), self.siblings)
        self.fleet.listen(self.seen)

    @property
    def endpoints(self):
        return self.fleet.endpoints(self.model)

    async def start(self) -> Worker:
        await self.siblings.start()
        await self.fleet.start()
        return self

    async def close(self) -> None:
        await self.siblings.close()
        await self.fleet.close()


@pytest.fixture
async def workers(tmp_path):
    """``await workers(number, engine, ...)`` starts one of three."""
    directory = tmp_path / "w"
    directory.mkdir(mode=0o700)
    started: list[Worker] = []

    async def start(number: int, *engines, settings: FleetSettings = QUICK) -> Worker:
        started.append(Worker(Seat(number, 3, str(directory)), settings, *(engine.url for engine in engines)))
        return await started[-1].start()

    yield start
    for worker in started:
        await worker.close()


async def test_one_asks_and_the_other_knows_the_same(workers, engines):
    engine = await engines(ranks=2, running=3, kv_usage=0.5, started=123.5, kv_sources={**SOURCES, "1": SOURCES["0"]})
    lead = await workers(0, engine, settings=SLOW)
    asked = list(engine.asked)
    follower = await workers(1, engine, settings=SLOW)
    assert engine.asked == asked
    assert [endpoint.name for endpoint in follower.endpoints] == [endpoint.name for endpoint in lead.endpoints]
    assert len(follower.endpoints) == 2
    for known, heard in zip(lead.endpoints, follower.endpoints, strict=True):
        assert heard.engine.up
        assert heard.metrics == known.metrics
        assert heard.source_known
        assert heard.source == known.source
        assert isinstance(heard.source, KvSource)
        assert heard.load.foreign_requests == pytest.approx(known.load.foreign_requests, rel=0.1)
        assert heard.warmth == 1.0
    assert follower.endpoints[1].metrics.running == 4
    ours = follower.endpoints[0].engine
    assert (ours.version, ours.started, ours.served) == ("0.32.0", 123.5, {"tiny": ServedModel("tiny")})
    assert ours.latency == lead.endpoints[0].engine.latency
    assert follower.seen.states == lead.seen.states
    # What is counted is counted once.
    assert follower.seen.scrapes == []
    assert not follower.seen.lookups


async def test_what_the_lead_finds_later_comes_too(workers, engines):
    engine = await engines(queries=0.0)
    lead, follower = await workers(0, engine), await workers(1, engine)
    engine.running, engine.queries = 7, 100.0
    await eventually(lambda: follower.endpoints[0].metrics.running == 7, within=30)
    await eventually(lambda: lead.seen.lookups[lead.endpoints[0].name, "own"] == 100, within=30)
    assert not any(follower.seen.lookups.values())
    told = []
    follower.fleet.when_changed(lambda: told.append(list(follower.endpoints[0].engine.served)))
    engine.models = [{"id": "newer"}]
    engine.started = 5.0  # another process, which is asked everything again
    await eventually(lambda: list(follower.endpoints[0].engine.served) == ["newer"], within=30)
    assert told == [["newer"]]
    assert ("restarted", follower.endpoints[0].name) in follower.seen.told
    assert follower.seen.scrapes == []


async def test_when_the_lead_goes_the_next_one_asks_and_no_engine_is_down_by_it(workers, engines):
    engine = await engines()
    first, second, third = await workers(0, engine), await workers(1, engine), await workers(2, engine)
    await first.close()
    before = engine.count("/metrics")
    await eventually(lambda: engine.count("/metrics") > before + 2, within=30)
    assert second.seen.scrapes
    assert third.seen.scrapes == []
    engine.running = 5
    await eventually(lambda: third.endpoints[0].metrics.running == 5, within=30)
    assert [up for worker in (second, third) for _, up, _ in worker.seen.states] == [True, True]

    # It is back: it knows all at once, leads, and the one that led before only listens.
    back = await workers(0, engine)
    assert back.endpoints[0].engine.up
    await eventually(lambda: back.seen.scrapes and second.siblings.lead == 0, within=30)
    engine.running = 6
    await eventually(lambda: second.endpoints[0].metrics.running == third.endpoints[0].metrics.running == 6, within=30)
    await settled_on(engine, back, second)


async def settled_on(engine, asking: Worker, listening: Worker) -> None:
    """Wait until some scrapes in a row are all of one worker."""

    async def some_are() -> bool:
        before = len(listening.seen.scrapes)
        goal = len(asking.seen.scrapes) + 3
        await eventually(lambda: len(asking.seen.scrapes) >= goal, within=30)
        return len(listening.seen.scrapes) == before

    for _ in range(100):
        if await some_are():
            return
    raise AssertionError("both ask")


async def test_a_lead_that_starts_last_takes_over_what_the_others_have_judged(workers, engines):
    engine, other = await engines(), await engines()
    second = await workers(1, engine, other, settings=SLOW)
    for _ in range(10):
        second.fleet.report_broken(second.endpoints[0], "died")
    assert second.endpoints[0].engine.down_reason == "broken-answers"
    asked = engine.count("/health")
    lead = await workers(0, engine, other, settings=SLOW)
    assert [endpoint.engine.down_reason for endpoint in lead.endpoints] == ["broken-answers", ""]
    assert lead.siblings.is_lead
    assert engine.count("/health") == asked


@pytest.mark.parametrize("seer", [0, 1, 2])
async def test_a_refused_connection_takes_the_engine_out_in_all(workers, engines, seer):
    engine = await engines()
    all_ = [await workers(number, engine, settings=SLOW) for number in range(3)]
    all_[seer].fleet.report_refused(all_[seer].endpoints[0])
    assert not all_[seer].endpoints[0].engine.up
    await eventually(lambda: {worker.endpoints[0].engine.down_reason for worker in all_} == {"refused"}, within=30)
    assert [worker.seen.states[-1][1:] for worker in all_] == [(False, "refused")] * 3


async def test_a_refused_engine_that_answers_is_up_again_in_all(workers, engines):
    engine = await engines()
    all_ = [await workers(number, engine) for number in range(3)]
    all_[2].fleet.report_refused(all_[2].endpoints[0])
    await eventually(
        lambda: all([up for _, up, _ in worker.seen.states] == [True, False, True] for worker in all_), within=30
    )
    assert [worker.endpoints[0].warmth < 1 for worker in all_] in ([True] * 3, [False] * 3)


async def test_a_broken_answer_has_the_lead_probe_and_many_take_the_engine_out_in_all(workers, engines):
    engine = await engines()
    lead, follower = await workers(0, engine, settings=SLOW), await workers(1, engine, settings=SLOW)
    health = engine.count("/health")
    follower.fleet.report_broken(follower.endpoints[0], "died")
    await eventually(lambda: engine.count("/health") == health + 1, within=30)
    assert lead.endpoints[0].engine.up
    for _ in range(10):
        follower.fleet.report_broken(follower.endpoints[0], "died")
    await eventually(lambda: lead.endpoints[0].engine.down_reason == "broken-answers", within=30)


async def test_an_engine_that_is_down_is_so_in_all_and_comes_back_in_all(workers, engines):
    engine = await engines()
    all_ = [await workers(number, engine) for number in range(2)]
    await engine.stop()
    await eventually(lambda: {worker.endpoints[0].engine.down_reason for worker in all_} == {"refused"}, within=30)
    await engine.start()
    await eventually(lambda: all(worker.endpoints[0].engine.up for worker in all_), within=30)
    assert all_[1].seen.scrapes == []


async def test_an_engine_that_only_a_follower_has_is_asked_by_it_until_the_lead_has_it(workers, engines):
    engine, other = await engines(), await engines()
    lead, follower = await workers(0, engine), await workers(1, engine)
    wanted = [(Model("tiny"), [EndpointSettings(engine.url), EndpointSettings(other.url)])]
    diff = await follower.fleet.prepare(wanted)
    follower.fleet.apply(diff)
    assert follower.endpoints[1].engine.up
    assert Counter(name for name, _ in follower.seen.scrapes).keys() == {follower.endpoints[1].engine.name}
    lead.fleet.apply(await lead.fleet.prepare(wanted))
    await settled_on(other, lead, follower)
    other.running = 4
    await eventually(lambda: follower.endpoints[1].metrics.running == 4, within=30)


async def test_an_endpoint_that_a_reload_adds_to_a_known_engine_gets_its_source(workers, engines):
    engine = await engines(kv_sources=SOURCES)
    lead, follower = await workers(0, engine), await workers(1, engine)
    second = Model("second")
    for worker in (lead, follower):
        settings = [EndpointSettings(engine.url)]
        worker.fleet.apply(await worker.fleet.prepare([(worker.model, settings), (second, settings)]))
    await eventually(lambda: follower.fleet.endpoints(second)[0].source_known, within=30)
    assert follower.fleet.endpoints(second)[0].source == lead.endpoints[0].source


async def test_what_is_no_report_is_refused_and_changes_nothing(workers, engines):
    engine = await engines()
    lead, follower = await workers(0, engine), await workers(1, engine)
    for topic in ("engine-report", "engine-failed", "engines-wanted", "engines-told"):
        lead.siblings.tell(topic, b"\xc1")
        follower.siblings.tell(topic, b"\x91\xc0")
    engine.running = 9
    await eventually(lambda: follower.endpoints[0].metrics.running == 9, within=30)
    assert lead.endpoints[0].engine.up


async def test_after_its_end_a_fleet_hears_nothing(workers, engines):
    engine = await engines()
    await workers(0, engine)
    follower = await workers(1, engine)
    await follower.fleet.close()
    told, metrics = list(follower.seen.told), follower.endpoints[0].metrics
    before = engine.count("/metrics")
    await eventually(lambda: engine.count("/metrics") > before + 3, within=30)
    await asyncio.sleep(0)
    assert (follower.seen.told, follower.endpoints[0].metrics) == (told, metrics)
