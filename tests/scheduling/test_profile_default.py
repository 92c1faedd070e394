"""Covers: gateway/scheduling/profile.py, scorers/placement_cost.py.

The default profile over a real fleet decides as its plain definition does: of the endpoints that may be sent to, the
one whose terms of cost, each by the formula of ``Scalars`` and ``Load.sums``, add up to the least.
"""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.booking import Booking
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Context, Endpoint, Kind, Request
from gateway.framework.fleet import EngineMetrics, Model
from gateway.framework.match import Match, Matches
from gateway.scheduling.trace import Trace
from tests.support.examples import examples

COUNT = 4
ONE = "models: [{name: m, endpoints: [{url: 'http://e:1'}]}]\n"

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 20_000), st.dictionaries(st.integers(0, COUNT - 1), st.floats(0, 1))),
        st.tuples(st.just("first_token"), st.integers(0, 50)),
        st.tuples(st.just("generated"), st.integers(0, 50), st.integers(1, 500)),
        st.tuples(st.just("settle"), st.integers(0, 50)),
        st.tuples(st.just("learn"), st.integers(0, COUNT - 1), st.floats(0.01, 5)),
        st.tuples(st.just("scraped"), st.integers(0, COUNT - 1), st.integers(0, 30), st.floats(0, 1)),
        st.tuples(st.just("down"), st.integers(0, COUNT - 1), st.booleans()),
        st.tuples(st.just("wait"), st.floats(0, 2)),
    ),
    max_size=40,
)


class Scene:
    """``booked``: what is under way."""

    def __init__(self) -> None:
        self.clock, self.model, chance = ManualClock(), Model("m"), random.Random(1)
        entries = [EndpointSettings(url=f"http://e{number}:1") for number in range(COUNT)]
        self.fleet = Fleet([(self.model, entries)], FleetSettings(), self.clock, NULL_OBSERVER, chance)
        self.endpoints = self.fleet.endpoints(self.model)
        for endpoint in self.endpoints:
            endpoint.engine.up = True
        context = Context("test", self.clock, chance)
        self.scheduler = build_scheduler(loads(ONE, {}), lambda _: context)
        [(_, self.scorer, _)] = self.scheduler.profiles["default"].scorers
        self.booked: list[Booking] = []

    def request(self, tokens: int, held: dict[int, float]) -> Request:
        matches = Matches()
        for number, share in held.items():
            found = int(share * tokens) // 16 * 16
            matches[self.endpoints[number].slot] = Match(gpu=found, expected_hit=min(found, tokens - 1))
        return Request(
            "r", self.model, Kind.CHAT, self.clock.now, stream=True, expected_output=100.0, prompt_tokens=tokens,
            matches=matches,
        )  # fmt: skip

    def cost(self, request: Request, endpoint: Endpoint) -> float:
        return sum(self.scorer.explain(request, endpoint).values())

    def ask(self, tokens: int, held: dict[int, float]) -> None:
        """Decide by the profile, compare with the definition, and book."""
        request, trace = self.request(tokens, held), Trace({})
        up = [endpoint for endpoint in self.endpoints if endpoint.engine.up]
        if not up:
            return
        chosen = self.scheduler.schedule(request, self.endpoints, trace).decode
        costs = {endpoint.name: self.cost(request, endpoint) for endpoint in up}
        assert costs[chosen.name] <= min(costs.values()) * (1 + 1e-9)
        [run] = trace.runs
        scores = {name: score for name, (score, _) in run.scores().items()}
        assert scores.keys() == costs.keys()
        for name, cost in costs.items():
            assert abs(scores[name] - 1 / (1 + cost)) <= 1e-9
        booking = Booking(request, chosen, self.clock.now)
        booking.book_prompt(self.clock.now, reported=tokens % 2 == 0)
        self.booked.append(booking)


@examples(100)
@given(actions=ACTIONS)
def test_the_profile_decides_as_its_definition(actions) -> None:
    scene = Scene()
    for what, *values in [*actions, ("ask", 1000, {})]:
        if what == "ask":
            scene.ask(*values)
        elif what == "wait":
            scene.clock.now += values[0]
        elif what == "learn":
            number, seconds = values
            cost = scene.fleet.cost(scene.endpoints[number])
            cost.learn_prefill(4000, 0, seconds, at=scene.clock.now)
            cost.count_request()
        elif what == "scraped":
            number, running, usage = values
            metrics = EngineMetrics(at=scene.clock.now, running=running, kv_usage=usage, kv_capacity=100_000)
            scene.endpoints[number].load.apply_scrape(metrics, scene.clock.now)
        elif what == "down":
            scene.endpoints[values[0]].engine.up = values[1]
        elif scene.booked:
            booking = scene.booked[values[0] % len(scene.booked)]
            if what == "first_token":
                booking.first_token()
            elif what == "generated":
                booking.set_generated(values[1])
            else:
                booking.settle()
                scene.booked.remove(booking)
