"""A request is decided, booked, learned from and given back: the ledgers and the index hold nothing of it then."""

from __future__ import annotations

import gc
from array import array
from random import Random
from typing import NamedTuple

import pytest

from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import Prompt
from gateway.errors import NoEndpoint
from gateway.fleet.engine import FleetEndpoint
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Context, Endpoint, Kind, Plan, Request
from gateway.framework.fleet import Model
from gateway.framework.request import PREFILL
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.settings import CacheSettings
from gateway.placement import placing
from gateway.placement.decision import Decision
from gateway.placement.placing import MOST, Answered, Placement, book, decide, learn
from gateway.scheduling.profile import RETRY_AFTER
from gateway.scheduling.trace import Trace

IDS = array("I", range(3200))
ONE = "models: [{name: m, endpoints: [{url: 'http://e1:1'}, {url: 'http://e2:1'}]}]"


class Apart:
    """A handler that computes each prompt on the second endpoint and answers on the first."""

    def plan(self, request, endpoints, run) -> Plan:
        return Plan.of(endpoints[0], prefill=endpoints[1], reason="split", connector="nixl")


class Plans:
    """A handler that has one plan."""

    def __init__(self, made: Plan) -> None:
        self.made = made

    def plan(self, request, endpoints, run) -> Plan:
        return self.made


class Asked(NamedTuple):
    request: Request
    keys: BlockKeys


class Scene:
    def __init__(self) -> None:
        self.clock, chance, self.model = ManualClock(), Random(1), Model("m", expected_output=100.0)
        entries = [EndpointSettings(f"http://e{number}:1") for number in (1, 2)]
        self.fleet = Fleet([(self.model, entries)], FleetSettings(), self.clock, NULL_OBSERVER, chance)
        self.endpoints = self.fleet.endpoints(self.model)
        self.index = CacheIndex(CacheSettings(), "m", self.clock, NULL_OBSERVER)
        for endpoint in self.endpoints:
            endpoint.engine.up = True
            self.index.add(endpoint, events=True)
            self.index.set_complete(endpoint.slot)
        self.scheduler = build_scheduler(loads(ONE, {}), lambda name: Context(name, self.clock, chance))
        self.keys: BlockKeys = self.index.keys(Prompt(IDS, len(IDS), True))

    def request(self, *, stream: bool = True, kind: Kind = Kind.CHAT) -> Request:
        return Request("r", self.model, kind, self.clock.now, stream=stream, token_ids=IDS, prompt_tokens=len(IDS))

    def decide(self, request: Request, trace: Trace | None = None, *, form: bool = False) -> Plan:
        return decide(Asked(request, self.keys), self.endpoints, self.index, self.scheduler, trace, form=form)

    def book(self, request: Request, plan: Plan, *, prefilled: Endpoint | None = None) -> Placement:
        return book(Asked(request, self.keys), plan, self.index, self.clock.now, prefilled=prefilled)

    def place(self, request: Request) -> Placement:
        return self.book(request, self.decide(request))

    def load(self, endpoint: Endpoint) -> tuple[int, int, int]:
        ledger = endpoint.load
        return ledger.requests, ledger.prefill_tokens, ledger.kv_tokens


def test_two_that_are_decided_one_after_the_other_see_each_other() -> None:
    scene = Scene()
    first = scene.request()
    placement = scene.place(first)
    assert scene.load(placement.plan.decode) == (1, len(IDS), len(IDS))
    other = scene.request()
    other.token_ids = array("I", range(5000, 8200))
    keys = scene.index.keys(Prompt(other.token_ids, len(IDS), True))
    first_at = placement.plan.decode
    elsewhere = decide(Asked(other, keys), scene.endpoints, scene.index, scene.scheduler)
    assert elsewhere.decode is not first_at, "the first one's work is in the way"
    alike = scene.request()
    assert scene.decide(alike).decode is first_at, "it will hold the same prompt"
    assert alike.matches[placement.plan.decode.slot].expected_hit == len(IDS) - 16, "but for its last block"
    placement.end(ok=False)
    assert scene.load(placement.plan.decode) == (0, 0, 0)
    assert scene.index.blocks == 0, "what was predicted does not come"


@pytest.mark.parametrize("form", [False, True])
def test_a_prompt_is_computed_apart_unless_it_must_not_be(form: bool) -> None:
    scene = Scene()
    scene.scheduler.handlers = {scene.model.handler: Apart()}
    request = scene.request()
    plan = scene.decide(request, form=form)
    assert Decision.of(request, plan).handler == scene.model.handler
    assert (plan.prefill is None, plan.reason) == ((True, "form") if form else (False, "split"))
    placement = scene.book(request, plan)
    assert placement.computes.endpoint is (plan.decode if form else scene.endpoints[1])
    assert placement.split is not form
    loads = [scene.load(endpoint)[1] for endpoint in scene.endpoints]
    assert loads == ([len(IDS), 0] if form else [0, len(IDS)])


def test_a_prefill_ends_once_and_a_hand_over_that_fails_books_the_prompt_where_the_answer_is() -> None:
    scene = Scene()
    request = scene.request()
    decode, prefill = scene.endpoints
    plan = Plan.of(decode, prefill=prefill, reason="split")
    placement = scene.book(request, plan)
    scene.clock.now = 1.0
    work = placement.ended(PREFILL, ok=True, seconds=1.0)
    assert work is not None
    assert placement.ended(PREFILL, ok=True) is None
    work.blocks.end()
    assert scene.load(scene.endpoints[1]) == (0, 0, 0)
    placement.falls_back(scene.clock.now)
    assert (placement.split, placement.computes) == (False, placement.decode)
    assert scene.load(scene.endpoints[0]) == (1, len(IDS), len(IDS))
    placement.end(ok=True)
    again = scene.book(scene.request(), plan, prefilled=prefill)
    assert [scene.load(endpoint)[:2] for endpoint in scene.endpoints] == [(1, 0), (0, 0)]
    again.end(ok=True)


def teaches_pace(scene: Scene, placement: Placement) -> bool:
    """Whether slow answers change what is thought of the decode endpoint."""
    cost = placement.decode.cost
    before = cost.prefill_scale, cost.step_scale
    scene.clock.now = 60.0
    for _ in range(20):
        learn(placement, Answered(60.0, events=50, first_at=59.0, tokens=50))
    return (cost.prefill_scale, cost.step_scale) != before


def test_a_leg_before_the_decode_leg_is_in_the_time_to_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it leaves KV on its endpoint or not."""
    monkeypatch.setattr(placing, "KEEP_KV", {*placing.KEEP_KV, "pull"})
    scene = Scene()
    decode, other = scene.endpoints
    placement = scene.book(scene.request(), Plan.of(decode, pull=other))
    assert scene.load(other)[2] > 0
    assert not teaches_pace(scene, placement)
    alone = scene.book(scene.request(), Plan.of(decode))
    assert teaches_pace(scene, alone)


def test_a_leg_of_another_kind_is_booked_as_one_request_and_given_back() -> None:
    scene = Scene()
    request = scene.request()
    decode, encode = scene.endpoints
    plan = Plan.of(decode, encode=encode)
    placement = scene.book(request, plan)
    assert scene.load(encode) == (1, 0, 0)
    assert scene.load(decode) == (1, len(IDS), len(IDS)), "no other leg computes the prompt"
    assert (placement.split, placement.computes) == (False, placement.decode)
    assert scene.decide(scene.request()).decode is decode, "only there will the prompt be"
    work = placement.ended("encode", ok=True)
    assert work is not None
    work.blocks.end()
    assert placement.ended("encode", ok=True) is None
    assert [scene.load(endpoint)[0] for endpoint in scene.endpoints] == [1, 0]
    assert not teaches_pace(scene, placement)
    placement.end(ok=False)
    again = scene.book(request, plan)
    again.cancel()
    assert [scene.load(endpoint) for endpoint in scene.endpoints] == [(0, 0, 0), (0, 0, 0)]
    assert scene.index.blocks == 0
    scene.scheduler.handlers = {scene.model.handler: Plans(plan)}
    assert scene.decide(request, form=True) == Plan.of(decode, reason="form")


@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_answer_teaches_the_pace_and_the_length(stream: bool) -> None:
    scene = Scene()
    request = scene.request(stream=stream)
    placement = scene.place(request)
    cost = placement.decode.cost
    before = cost.prefill_scale, cost.step_scale
    scene.clock.now = 60.0
    seen = Answered(60.0, events=50, first_at=20.0, later=49, tokens=200) if stream else Answered(60.0, tokens=200)
    for _ in range(20):
        learn(placement, seen)
    assert scene.model.expected_output > 100.0
    assert (scene.model.event_tokens > 1.0) is stream
    assert (cost.prefill_scale, cost.step_scale) != before
    placement.end(ok=True)


def test_an_answer_that_was_cut_off_says_only_that_it_had_so_many() -> None:
    scene = Scene()
    scene.model.expected_output = 200.0
    request = scene.request(stream=False)
    placement = scene.place(request)

    def answered(tokens: int, limit: int) -> float:
        request.max_tokens = limit
        learn(placement, Answered(1.0, tokens=tokens))
        return scene.model.expected_output

    assert answered(10, limit=10) == 200
    more = answered(400, limit=400)
    assert more > 200
    assert answered(10, limit=50) < more


def test_tokens_of_an_event_are_learned_within_bounds() -> None:
    scene = Scene()
    request = scene.request()
    placement = scene.place(request)
    for _ in range(200):
        learn(placement, Answered(1.0, events=10, tokens=30))
    assert scene.model.event_tokens == pytest.approx(3, rel=0.01)
    for _ in range(500):
        learn(placement, Answered(1.0, events=1, tokens=10**12))
    assert scene.model.event_tokens <= MOST


def test_what_generates_nothing_teaches_no_length() -> None:
    scene = Scene()
    request = scene.request(stream=False, kind=Kind.EMBEDDING)
    placement = scene.place(request)
    learn(placement, Answered(1.0))
    assert scene.model.expected_output == 100.0
    placement.end(ok=True)


def test_where_no_endpoint_is_left_the_decision_says_what_was_tried() -> None:
    scene = Scene()
    for endpoint in scene.endpoints:
        endpoint.engine.up = False
    request, trace = scene.request(), Trace({})
    with pytest.raises(NoEndpoint) as raised:
        scene.decide(request, trace)
    error = raised.value
    decision = Decision.of(request, error, trace.runs)
    assert (decision.legs, [run.profile for run in decision.runs]) == ((), ["default"])
    assert (error.retry_after, "healthy" in str(error)) == (RETRY_AFTER, True)
    assert decision.to_json()["error"] == str(error)


def test_a_decision_keeps_no_endpoint() -> None:
    scene = Scene()
    request, trace = scene.request(), Trace({})
    held: list[object] = [Decision.of(request, scene.decide(request, trace), trace.runs)]
    seen: set[int] = set()
    while held:
        one = held.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        assert not isinstance(one, FleetEndpoint | Request)
        held.extend(gc.get_referents(one))
