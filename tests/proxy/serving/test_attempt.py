"""Whatever happens to requests, in whatever order: the ledgers and the index hold what is under way, and nothing in the
end."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from dataclasses import dataclass
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.api.routes import ROUTES
from gateway.api.usage import Usage
from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import Prompt
from gateway.errors import NoEndpoint
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.booking import BOOKING_STEP
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Kind, Plan, Request
from gateway.framework.fleet import EngineMetrics, Model
from gateway.framework.match import Match, Matches
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.predictions import EVENTS_WITHIN
from gateway.kvcache.settings import CacheSettings
from gateway.placement.placing import book
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import NO_BODY, Call
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.timeline import Phase, Timeline
from gateway.proxy.upstream.legs import Cause, LegFailed
from gateway.scheduling.scheduler import Scheduler
from tests.support.examples import examples

ENDPOINTS = 3

ENDS = {
    "ok": None,
    "cancelled": asyncio.CancelledError(),
    "no_endpoint": NoEndpoint("no endpoint"),
    "bug": ZeroDivisionError(),
}
"""What may end an attempt, by the outcome of its request."""


class Silent:
    """Stands for what an attempt reports to and hears nothing from: parity, and the retries."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


@dataclass(eq=False)
class Asked:
    """A request, and the last attempt at it."""

    attempt: Attempt

    @property
    def timeline(self) -> Timeline:
        return self.attempt.timeline

    def end(self, error: BaseException | None = None) -> None:
        """The director leaves the attempt, by ``error`` if there is one."""
        with contextlib.suppress(BaseException), self.attempt:
            if error is not None:
                raise error


class Requests(RuleBasedStateMachine):
    requests: Bundle[Asked] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model = Model("m")
        entries = [EndpointSettings(f"http://e{number}:1") for number in range(ENDPOINTS)]
        self.fleet = Fleet([(self.model, entries)], FleetSettings(), self.clock, NULL_OBSERVER, Random(1))
        self.endpoints = self.fleet.endpoints(self.model)
        self.ledgers = [endpoint.load for endpoint in self.endpoints]
        self.index = CacheIndex(CacheSettings(), "m", self.clock, NULL_OBSERVER)
        for endpoint in self.endpoints:
            self.index.add(endpoint, events=True)
            self.index.set_complete(endpoint.slot)
        self.live: list[Asked] = []
        self.decisions = Decisions(self.clock)
        self.scheduler = Scheduler({}, {}, NULL_OBSERVER)

    @rule(
        target=requests,
        tokens=st.integers(0, 5000),
        held=st.integers(0, 5000),
        stream=st.booleans(),
        kind=st.sampled_from([Kind.CHAT, Kind.EMBEDDING]),
        decode=st.integers(0, ENDPOINTS - 1),
        prefill=st.none() | st.integers(0, ENDPOINTS - 1),
        prefilled=st.booleans(),
    )
    def place(self, tokens, held, stream, kind, decode, prefill, prefilled) -> Asked:
        route = next(route for route in ROUTES.values() if route.kind is kind)
        matches = Matches()
        for endpoint in self.endpoints:
            matches[endpoint.slot] = Match(gpu=held, expected_hit=min(held, max(0, tokens - 1)))
        request = Request("x", self.model, kind, self.clock.now, stream=stream, prompt_tokens=tokens, matches=matches)
        ids = array("I", [tokens % 3]) * tokens
        keys = self.index.keys(Prompt(ids, tokens, True))
        runtime = SimpleNamespace(model=self.model, index=self.index, tokens=SimpleNamespace(parity=Silent()))
        call = Call(
            *("x", route, (), NO_BODY, runtime, request, 1, "", inf),
            *(Prompt(ids, tokens, exact=True), keys, tokens),
        )
        timeline = Timeline(self.clock, self.clock.now, phase=Phase.BEFORE_COMMIT, request=request)
        asked = Asked(self._plan(call, timeline, decode, prefill, prefilled))
        self.live.append(asked)
        return asked

    @rule(
        asked=requests,
        decode=st.integers(0, ENDPOINTS - 1),
        prefill=st.none() | st.integers(0, ENDPOINTS - 1),
        prefilled=st.booleans(),
    )
    def fail_over(self, asked, decode, prefill, prefilled) -> None:
        """An attempt failed, and another endpoint is tried."""
        failed = asked.attempt
        if not failed.over:
            asked.end(LegFailed(Cause.REFUSED, failed.plan.decode, "refused"))
            assert (failed.over, asked.timeline.outcome) == (True, "ok"), "the request goes on"
            asked.attempt = self._plan(failed.call, failed.timeline, decode, prefill, prefilled)

    @rule(asked=requests, told=st.booleans())
    def prefill_ends(self, asked, told) -> None:
        usage = Usage(prompt_tokens=7, cached_tokens=3) if told else None
        asked.attempt.prefilled("ok", usage=usage, seconds=0.1 if told else None)

    @rule(asked=requests)
    def fall_back(self, asked) -> None:
        if not asked.attempt.over and asked.attempt.placement.split:
            asked.attempt.falls_back("decode refused")

    @rule(asked=requests, events=st.integers(0, 300))
    def generate(self, asked, events) -> None:
        if not asked.attempt.over:
            asked.attempt.progressed(events)

    @rule(asked=requests, status=st.sampled_from([200, 200, 400, 500]), tokens=st.none() | st.integers(0, 400))
    def answer(self, asked, status, tokens) -> None:
        if asked.timeline.phase is not Phase.DONE:
            usage = None if tokens is None else Usage(output_tokens=tokens, prompt_tokens=tokens)
            asked.attempt.answered(status, usage)

    @rule(asked=requests)
    def break_off(self, asked) -> None:
        asked.attempt.broke(LegFailed(Cause.DIED, self.endpoints[0], "reset"))

    @rule(asked=consumes(requests), how=st.sampled_from(list(ENDS)))
    def end(self, asked, how) -> None:
        how_it_was = asked.timeline.outcome, asked.attempt.over
        for _ in range(2):
            asked.end(ENDS[how])
        assert asked.attempt.over
        if how_it_was == ("ok", False):
            assert asked.timeline.outcome == how
        self.live.remove(asked)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds) -> None:
        self.clock.now += seconds

    @rule(endpoint=st.integers(0, ENDPOINTS - 1), running=st.integers(0, 20), usage=st.floats(0, 1))
    def scrape(self, endpoint, running, usage) -> None:
        metrics = EngineMetrics(running=running, kv_usage=usage, kv_capacity=10_000, block_size=16)
        self.ledgers[endpoint].apply_scrape(metrics, self.clock.now - 0.1)

    @invariant()
    def the_ledgers_hold_what_is_under_way(self) -> None:
        placements = [asked.attempt.placement for asked in self.live if not asked.attempt.over]
        bookings = [work for p in placements for work in (*p.legs.values(), p.decode)]
        for endpoint, ledger in zip(self.endpoints, self.ledgers, strict=True):
            assert ledger.requests == sum(booking.endpoint is endpoint for booking in bookings)
            done = ledger.sums(self.clock.now)[3]
            figures = (ledger.prefill_tokens, ledger.prefill_attention, done, ledger.kv_tokens)
            assert min(figures) >= 0
            assert min(ledger.foreign_requests, ledger.foreign_kv_tokens) >= 0
            assert endpoint.in_flight == ledger.requests
            if not ledger.requests:
                assert figures == (0, 0, 0, 0)

    def teardown(self) -> None:
        for asked in self.live:
            asked.end()
        for ledger in self.ledgers:
            assert (ledger.requests, ledger.prefill_tokens, ledger.kv_tokens) == (0, 0, 0)
            assert (ledger.prefill_attention, ledger.sums(self.clock.now)[3]) == (0, 0)
        self.clock.now += EVENTS_WITHIN
        self.index.match(self.index.keys(Prompt(array("I"), 0, True)), 0, self.endpoints)
        assert self.index.blocks == 0

    def _plan(self, call: Call, timeline: Timeline, decode: int, prefill: int | None, prefilled: bool) -> Attempt:
        split = prefill is not None and prefill != decode
        others = {"prefill": self.endpoints[prefill]} if split else {}
        plan = Plan.of(self.endpoints[decode], **others)
        done = others.get("prefill") if prefilled else None
        placement = book(call, plan, self.index, self.clock.now, prefilled=done)
        record = self.decisions.keep(call.request, plan, None, 1, self.clock.now)
        return Attempt(call, timeline, placement, record, Silent(), self.scheduler, NULL_OBSERVER)


TestRequests = Requests.TestCase
TestRequests.settings = examples(60, stateful_step_count=40)


def test_what_the_engine_counted_corrects_what_its_events_said() -> None:
    """A scrape that was under way when the answer ended still holds it: the rest is others'."""
    requests = Requests()
    asked = requests.place(1000, 0, True, Kind.CHAT, 0, None, False)
    requests.model.event_tokens = 4.0
    asked.attempt.progressed(100)
    [ledger, *_] = requests.ledgers
    assert ledger.kv_tokens == 1400
    asked.attempt.answered(200, Usage(output_tokens=100))
    ledger.apply_scrape(EngineMetrics(kv_usage=0.16, kv_capacity=10_000), requests.clock.now - 0.1)
    assert ledger.foreign_kv_tokens == 500


def test_a_stream_is_entered_in_the_ledger_once_a_block() -> None:
    requests = Requests()
    asked = requests.place(1000, 0, True, Kind.CHAT, 0, None, False)
    [ledger, *_] = requests.ledgers
    booked = []
    for events in range(1, 10 * BOOKING_STEP):
        asked.attempt.progressed(events)
        assert asked.timeline.outputs == events
        assert 0 <= 1000 + events - ledger.kv_tokens < BOOKING_STEP
        booked.append(ledger.kv_tokens)
    assert len(set(booked)) == 10
    requests.teardown()
