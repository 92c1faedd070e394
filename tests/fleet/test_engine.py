from __future__ import annotations

import asyncio
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.booking import Booking
from gateway.fleet.ranks import ranks_of
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Kind, Request
from gateway.framework.fleet import Model
from gateway.framework.match import Match, Matches
from tests.support.examples import examples
from tests.support.fleet import engines_of


class Endpoints(RuleBasedStateMachine):
    """Engines that change their ranks, models that come and go, and requests that outlive both."""

    URLS = ("http://a:1", "http://b:1")

    def __init__(self) -> None:
        super().__init__()
        self.models = [Model("one"), Model("other")]
        self.fleet = Fleet([], FleetSettings(), SystemClock(), NULL_OBSERVER, Random(1))
        self.wanted: set[tuple[int, str]] = set()
        self.live: set[int] = set()
        self.resting: set[int] = set()
        self.names: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.fleet.listen(self)
        self.booked = []

    # as a listener

    def endpoint_added(self, endpoint) -> None:
        assert endpoint.slot not in self.live | self.resting
        assert endpoint.slot not in {other.slot for other, _ in self.booked if other is not endpoint}
        assert endpoint.name not in self.names
        self.live.add(endpoint.slot)
        self.names.add(endpoint.name)

    def endpoint_dropped(self, endpoint) -> None:
        self.live.remove(endpoint.slot)
        self.names.remove(endpoint.name)
        self.resting.add(endpoint.slot)

    # what happens

    @rule(model=st.sampled_from([0, 1]), url=st.sampled_from(URLS))
    def add(self, model, url) -> None:
        self.wanted.add((model, url))
        self.change()
        self.numbers.setdefault(url, 1)

    @rule(url=st.sampled_from(URLS), number=st.integers(1, 4))
    def ranks_are(self, url, number) -> None:
        engine = next((engine for engine in engines_of(self.fleet) if engine.url == url), None)
        if engine is not None:
            self.fleet._registry._set_ranks(engine, number)
            self.numbers[url] = number

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def drop(self, data) -> None:
        model, url = data.draw(st.sampled_from(sorted(self.wanted)))
        self.wanted.remove((model, url))
        self.change()
        if url not in {left for _, left in self.wanted}:
            del self.numbers[url]

    def change(self) -> None:
        def entries(number: int) -> list[EndpointSettings]:
            return [EndpointSettings(url=url, api_key=f"k{number}") for of, url in sorted(self.wanted) if of == number]

        wanted = [(model, entries(number)) for number, model in enumerate(self.models)]
        change = asyncio.run(self.fleet.prepare(wanted))
        for binding in change.added:
            for endpoint in binding.endpoints:
                self.endpoint_added(endpoint)
        self.fleet.apply(change)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def place(self, data) -> None:
        endpoint = data.draw(st.sampled_from([e for model in self.models for e in self.fleet.endpoints(model)]))
        matches = Matches()
        matches[endpoint.slot] = Match()
        request = Request("r", endpoint.model, Kind.CHAT, 0.0, prompt_tokens=7, matches=matches)
        self.booked.append((endpoint, Booking(request, endpoint, 0.0)))

    @precondition(lambda self: self.booked)
    @rule(data=st.data())
    def settle(self, data) -> None:
        index = data.draw(st.integers(0, len(self.booked) - 1))
        endpoint, booking = self.booked.pop(index)
        assert endpoint.api_key == ("k0" if endpoint.model is self.models[0] else "k1")
        booking.settle()
        booking.settle()

    @rule()
    def sweep(self) -> None:
        for slot in self.resting:
            self.fleet.release_slot(slot)
        self.resting.clear()

    # what is always so

    @invariant()
    def all_is_told_and_every_rank_is_there(self) -> None:
        endpoints = [endpoint for model in self.models for endpoint in self.fleet.endpoints(model)]
        assert {endpoint.slot for endpoint in endpoints} == self.live
        assert {endpoint.name for endpoint in endpoints} == self.names
        assert len(endpoints) == len(self.live)
        assert {engine.url for engine in engines_of(self.fleet)} == set(self.numbers)
        for engine in self.fleet._registry.engines:
            assert [core.rank for core in engine.cores] == list(ranks_of(self.numbers[engine.url]))
            assert set(engine.endpoints) == {endpoint for endpoint in endpoints if endpoint.engine is engine}

    @invariant()
    def ledgers_hold_what_is_under_way(self) -> None:
        for endpoint in {endpoint for endpoint, _ in self.booked}:
            shared = [1 for other, _ in self.booked if other.load is endpoint.load]
            assert endpoint.load.requests == len(shared)

    @invariant()
    def requests_in_flight_are_counted_by_name(self) -> None:
        """Whoever comes back has those too that its last one has yet to settle; of who is gone nothing is shown."""
        names = [endpoint.name for endpoint, _ in self.booked]
        assert self.fleet.in_flight() == {name: names.count(name) for name in self.names}


Endpoints.TestCase.settings = examples(60, stateful_step_count=30)
TestEndpoints = Endpoints.TestCase
