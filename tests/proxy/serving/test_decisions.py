"""The ring of past decisions: bounded, and it keeps no endpoint and no prompt."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
import weakref
from array import array

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.booking import Booking
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Context, Kind, Request
from gateway.framework.fleet import Model
from gateway.framework.match import Match, Matches, Source
from gateway.proxy.serving.decisions import DecisionRecord, Decisions
from gateway.scheduling.trace import Trace
from tests.support.examples import examples

IDS = array("I", range(20_000))
ONE = "models: [{name: m, endpoints: [{url: 'http://e:1'}]}]\n"
SEVERAL = """
plugins: [{name: cost, type: placement-cost}, {name: prefix, type: prefix-cache}, {name: best, type: max-score}]
profiles:
- {name: default, scorers: [{plugin: cost, weight: 2}, {plugin: prefix, weight: 0.5}], picker: best}
"""


class Scene:
    """Places requests on a fleet as the director does."""

    def __init__(self, endpoints: int, wiring: str = "", **bounds: int) -> None:
        self.clock, self.chance, self.model = SystemClock(), random.Random(1), Model("m")
        self.entries = [EndpointSettings(url=f"http://engine-{number}:1") for number in range(endpoints)]
        self.fleet = Fleet([(self.model, self.entries)], FleetSettings(), self.clock, NULL_OBSERVER, self.chance)
        for endpoint in self.endpoints:
            endpoint.engine.up = True
        context = Context("test", self.clock, self.chance)
        self.scheduler = build_scheduler(loads(ONE + wiring, {}), lambda _: context)
        self.decisions = Decisions(self.clock, **bounds)

    @property
    def endpoints(self):
        return self.fleet.endpoints(self.model)

    def drop_first(self) -> None:
        self.fleet.apply(asyncio.run(self.fleet.prepare([(self.model, self.entries[1:])])))

    def place(self, name: str = "r", holders: int = 0) -> DecisionRecord:
        ids = IDS
        request = Request(name, self.model, Kind.CHAT, 0.0, token_ids=ids, prompt_tokens=len(ids), exact=True)
        request.headers = {"x-secret": "a" * 1000}
        request.matches = Matches(
            {e.slot: Match(gpu=1600, expected_hit=1600, source=Source.EVENTS) for e in self.endpoints[:holders]}
        )
        runs, now = Trace(self.decisions.rosters), self.clock.monotonic()
        plan = self.scheduler.schedule(request, self.endpoints, runs)
        booking = Booking(request, plan.decode, now)
        booking.book_prompt(now, reported=True)
        kept = self.decisions.keep(request, plan, runs, 1, now)
        kept.book(booking)
        booking.settle()
        return kept


def shown(attempted: DecisionRecord) -> dict:
    return attempted.to_json_at(10.0, 1000.0)


@examples(30)
@given(count=st.integers(1, 30), size=st.integers(2_000, 60_000), holders=st.lists(st.integers(0, 4), max_size=40))
def test_it_keeps_the_newest_within_count_and_bytes(count: int, size: int, holders: list[int]) -> None:
    scene = Scene(4, count=count, size=size)
    placed = []
    for number, held in enumerate(holders):
        placed.append(scene.place(str(number), held))
        kept = list(scene.decisions)
        assert len(kept) == len(scene.decisions) <= count
        assert scene.decisions.size == sum(one.size for one in kept) <= size
        assert kept == placed[::-1][: len(kept)]
    fits = 0
    for decision in placed[::-1][:count]:
        fits += decision.size
        if fits > size:
            break
    else:
        assert len(scene.decisions) == min(count, len(placed)), "nothing goes before it must"


def test_its_bytes_are_what_it_takes() -> None:
    for endpoints, holders, wiring in ((1, 0, ""), (8, 3, SEVERAL), (60, 60, SEVERAL)):
        scene = Scene(endpoints, wiring)
        scene.place()
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(100):
                scene.place(str(number), holders)
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] / 100
        finally:
            tracemalloc.stop()
        counted = scene.decisions.size / len(scene.decisions)
        assert 0.5 * counted <= taken <= 1.25 * counted, (endpoints, holders, taken, counted)


def test_an_endpoint_that_is_gone_is_not_kept() -> None:
    """What it has learned would count among its peers for as long as it were."""
    scene = Scene(3)
    scene.place("before", holders=3)
    cost = weakref.ref(scene.fleet.cost(scene.endpoints[0]))
    name = scene.endpoints[0].name
    scene.drop_first()
    scene.decisions.endpoint_dropped(name)
    gc.collect()
    assert cost() is None
    (decision,) = scene.decisions
    assert name in [candidate["endpoint"] for candidate in shown(decision)["profiles"][0]["candidates"]]


def test_neither_is_the_request() -> None:
    scene = Scene(2)
    decision = scene.place()
    gc.collect()
    assert not [one for one in gc.get_referrers(decision) if isinstance(one, Request)]
    assert b"aaaa" not in orjson.dumps(shown(decision))
    held = [decision]
    seen: set[int] = set()
    while held:
        one = held.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        assert not isinstance(one, Request)
        assert not (isinstance(one, array) and one.typecode == "I")
        held.extend(gc.get_referents(one))


def test_candidates_that_stay_the_same_are_kept_once() -> None:
    scene = Scene(8)
    one, two = scene.place(), scene.place()
    assert one.runs[0].roster is two.runs[0].roster
    scene.drop_first()
    assert scene.place().runs[0].roster != one.runs[0].roster


def test_a_decision_is_told_with_scores_and_matches_best_first() -> None:
    scene = Scene(3, SEVERAL)
    scene.place("warm-up")
    decision = scene.place("asked", holders=1)
    told = shown(decision)
    (profile,) = told["profiles"]
    first, second, _ = profile["candidates"]
    assert profile["scorers"] == {"cost": 2.0, "prefix": 0.5}
    assert (profile["picked"], told["plan"]["decode"]) == (first["endpoint"], first["endpoint"])
    assert (first["expected_hit"], first["match"]["source"], second["match"]["source"]) == (1600, "events", "none")
    assert first["score"] == 2 * first["scores"]["cost"] + 0.5 * first["scores"]["prefix"]
    assert first["scores"]["prefix"] == 0.08
    assert first["score"] > second["score"]
    assert told["predicted"]["new_tokens"] == 18_400
    assert told["at"] == 1000.0 - (10.0 - decision.at)
    assert told["outcome"] is None


def test_what_filters_removed_comes_last_with_the_filter() -> None:
    scene = Scene(3)
    scene.endpoints[0].engine.up = False
    scene.endpoints[1].engine.up = False
    (profile,) = shown(scene.place())["profiles"]
    names = [endpoint.name for endpoint in scene.endpoints]
    assert profile["filters"] == [{"filter": "healthy", "removed": names[:2]}]
    assert [(c["endpoint"], c.get("removed_by")) for c in profile["candidates"]] == [
        (names[2], None), (names[0], "healthy"), (names[1], "healthy")
    ]  # fmt: skip
    assert "score" not in profile["candidates"][1]
