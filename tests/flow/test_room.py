"""An endpoint has room by the ledger; scrapes can narrow that, and neither open nor close it."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import pytest

from gateway.core.clock import ManualClock
from gateway.fleet.load.ledger import Ledger, Reservation
from gateway.flow.live_kv import LiveKv
from gateway.flow.room import Room
from gateway.flow.settings import QueueSettings
from gateway.flow.window import Windows
from gateway.framework import Endpoint, Kind, Plan, Request, Role
from gateway.framework.fleet import EngineMetrics
from gateway.framework.request import DECODE, PREFILL, Slo
from gateway.kvcache.index.keys import BlockKeys
from tests.support.candidates import Physics, endpoint, request

NO_KEYS = BlockKeys(array("Q"), 16, 0, True, True)


class Asked(NamedTuple):
    request: Request
    keys: BlockKeys


class Scene:
    def __init__(self, **settings: object) -> None:
        self.live, self.windows = LiveKv(), Windows(adapt=True)
        self.room = Room(QueueSettings(**settings), self.live, self.windows)  # type: ignore[arg-type]

    def binding(self, one: Endpoint, asked: Request | None = None, *, leg: str = "", keys: BlockKeys = NO_KEYS) -> str:
        return self.room.binding(one, asked or request(), keys, 10.0, leg=leg)


def busy(slot: int = 0, *, capacity: int = 0, **given: object) -> Endpoint:
    """An endpoint with something in flight. 1 ms a prompt token; steps of 20 ms, and 1 ms a request."""
    one = endpoint(slot, metrics=EngineMetrics(kv_capacity=capacity), **{"requests": 1, **given})  # type: ignore[arg-type]
    one.in_flight = 1
    return one


def test_queued_prompts_must_take_less_than_the_window_and_what_is_done_of_them_does_not_count():
    scene = Scene()
    assert scene.binding(busy(prefill_tokens=299)) == ""
    assert scene.binding(busy(prefill_tokens=300)) == "prefill"
    assert scene.binding(busy(prefill_tokens=300, prefill_done=0.1)) == ""
    assert scene.binding(busy(prefill_tokens=300, prefill_done=9.0)) == ""


def test_kv_is_what_is_live_and_what_the_request_adds_and_may_generate():
    scene, asked = Scene(), request(1000, expected_output=100.0)
    full = 9000 - 1100
    assert scene.binding(busy(capacity=10_000, kv_tokens=full), asked) == ""
    assert scene.binding(busy(capacity=10_000, kv_tokens=full + 1), asked) == "kv"
    embedding = request(1000, kind=Kind.EMBEDDING)  # of which no output is expected
    assert scene.binding(busy(capacity=10_000, kv_tokens=full + 100), embedding) == ""


def test_a_prefix_that_live_requests_share_is_there_once():
    scene, asked = Scene(), request(1024)
    keys = BlockKeys(array("Q", range(1, 65)), 16, 1024, True, True)
    one = busy(capacity=10_000, kv_tokens=8976)
    assert scene.binding(one, asked, keys=keys) == "kv"
    scene.live.hold(one, keys)
    assert scene.binding(one, asked, keys=keys) == ""  # it adds nothing
    assert scene.binding(one, asked) == "kv"
    scene.live.hold(one, keys)
    assert scene.live.saved(one) == 1024
    assert scene.binding(one, asked) == ""  # what is there is 1,024 tokens less than the ledger has


def test_a_step_takes_at_most_five_empty_ones_or_the_requests_own_objective():
    scene = Scene()
    assert scene.binding(busy(requests=79), request(0)) == ""
    assert scene.binding(busy(requests=80), request(0)) == "step"
    strict = request(0, slo=Slo(tpot=0.030))
    assert scene.binding(busy(requests=8), strict) == ""
    assert scene.binding(busy(requests=10), strict) == "step"
    assert scene.binding(busy(requests=100), request(0, slo=Slo(tpot=1.0))) == ""


def test_an_objective_that_even_an_empty_engine_misses_binds_nothing():
    impossible = request(0, slo=Slo(tpot=0.005))
    assert Scene().binding(busy(requests=79), impossible) == ""
    assert Scene().binding(busy(requests=80), impossible) == "step"


def test_an_endpoint_with_nothing_in_flight_takes_whatever_comes():
    one = busy(capacity=1000, prefill_tokens=10**6, kv_tokens=10**6, requests=500)
    one.in_flight = 0
    assert Scene().binding(one, request(10**6, slo=Slo(tpot=1e-9))) == ""


def test_legs_ask_for_what_they_do_only():
    scene = Scene()
    queued, full = busy(prefill_tokens=900), busy(capacity=1000, kv_tokens=900)
    assert scene.binding(queued, leg=DECODE) == ""
    assert scene.binding(queued, leg=PREFILL) == "prefill"
    assert scene.binding(full, leg=PREFILL) == ""
    assert scene.binding(full, leg=DECODE) == "kv"


def test_a_plan_of_two_legs_asks_both_and_names_the_one_without_room():
    scene, asked = Scene(), Asked(request(), NO_KEYS)
    prefill, decode = busy(0, role=Role.PREFILL), busy(1, capacity=10_000)
    plan = Plan.of(decode, prefill=prefill)
    assert scene.room.lacks(asked, plan, 10.0) == (None, "")
    prefill.load.prefill_tokens = 900  # type: ignore[misc]
    assert scene.room.lacks(asked, plan, 10.0) == (prefill, "prefill")
    prefill.load.prefill_tokens, decode.load.kv_tokens = 0, 9000  # type: ignore[misc]
    assert scene.room.lacks(asked, plan, 10.0) == (decode, "kv")
    assert scene.room.lacks(asked, Plan.of(decode, encode=prefill), 10.0) == (decode, "kv")
    encoder = busy(2, prefill_tokens=900)
    assert scene.room.lacks(asked, Plan.of(prefill, encode=encoder), 10.0) == (None, "")


def test_a_slow_start_and_late_first_tokens_narrow_it():
    scene = Scene()
    one = busy(prefill_tokens=200, capacity=10_000, kv_tokens=3000)
    assert scene.binding(one) == ""
    one.warmth = 0.5
    assert scene.binding(one) == "prefill"
    assert scene.binding(one, request(2000), leg=DECODE) == "kv"
    one.warmth = 1.0
    for _ in range(100):
        scene.windows.first_token(one, 0.1, 9.0)
    assert scene.binding(one) == "prefill"
    assert scene.binding(one, request(2000), leg=DECODE) == "", "late first tokens say nothing of its memory"
    assert scene.binding(busy(requests=10), request(0)) == "", "or of its decode steps"


def scraped(usage: float, *, running: int, age: float) -> Endpoint:
    """An endpoint on whose real ledger 10 requests of 1,000 tokens run, after a scrape ``age`` seconds ago."""
    clock = ManualClock(10.0)
    one, ledger = busy(capacity=100_000), Ledger(clock)
    ledger.price(Physics().scalars)
    one.load = ledger
    one.in_flight = 0
    for _ in range(10):
        Reservation(ledger, 1000, one)
    metrics = EngineMetrics(at=10.0 - age, running=running, kv_usage=usage, kv_capacity=100_000, block_size=16)
    clock.now = 10.0 - age
    ledger.apply_scrape(metrics, asked=clock.now)
    clock.now = 10.0
    return one


@pytest.mark.parametrize("age", [0.0, 60.0])
@pytest.mark.parametrize(("usage", "running"), [(1.0, 10_000), (0.0, 0)])
def test_a_wrong_or_late_scrape_neither_closes_nor_opens_it(usage, running, age):
    one, scene = scraped(usage, running=running, age=age), Scene()
    assert scene.binding(one, request(1000)) == ""
    for _ in range(80):
        Reservation(one.load, 1000, one)  # type: ignore[arg-type]
    assert scene.binding(one, request(1000)) != ""


def test_others_that_a_scrape_shows_take_room_away_until_it_is_old():
    asked = request(40_000)
    assert Scene().binding(scraped(0.1, running=10, age=0.0), asked) == ""
    assert Scene().binding(scraped(0.6, running=10, age=0.0), asked) == "kv"
    assert Scene().binding(scraped(0.6, running=10, age=60.0), asked) == ""


def test_fullness_is_1_where_a_bound_is_reached_and_names_the_fullest():
    scene = Scene()
    assert scene.room.fullness(busy(prefill_tokens=150, capacity=9000), 10.0).prefill == pytest.approx(0.5)
    full = scene.room.fullness(busy(prefill_tokens=150, capacity=10_000, kv_tokens=9000), 10.0)
    assert full.kv == pytest.approx(1.0)
    assert (full.binding, full.saturation) == ("kv", full.kv)
    assert scene.room.fullness(busy(prefill_tokens=150), 10.0).binding == ""
    assert scene.room.fullness(busy(requests=200), 10.0).binding == "step"
    idle = busy(prefill_tokens=10**6)
    idle.in_flight = 0
    assert scene.room.fullness(idle, 10.0).saturation == 0.0
