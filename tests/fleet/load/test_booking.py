from __future__ import annotations

from random import Random

import pytest

from filters.slo import SloFilter
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.booking import Booking
from gateway.fleet.settings import CostSettings, EndpointSettings, FleetSettings, StartingCosts
from gateway.framework import Context, Kind, Request
from gateway.framework.cost import FirstToken
from gateway.framework.fleet import EngineMetrics, Model
from gateway.framework.match import Match, Matches
from gateway.framework.request import Slo
from scorers.placement_cost import PlacementCost
from tests.support.ledgers import reserve


def test_what_an_engine_has_room_for_is_told_in_its_own_steps(manual_clock):
    clock, model = manual_clock(), Model("m")
    settings = FleetSettings(cost=CostSettings(step_tokens=1000))
    fleet = Fleet([(model, [EndpointSettings("http://e:1")])], settings, clock, NULL_OBSERVER, Random(3))
    (endpoint,) = fleet.endpoints(model)
    matches = Matches({endpoint.slot: Match()})
    request = Request(id="r", model=model, kind=Kind.CHAT, arrived=clock.now, prompt_tokens=4000, matches=matches)
    booking = Booking(request, endpoint, clock.now)
    booking.book_prompt(clock.now, reported=True)
    assert endpoint.load.unallocated_tokens == 4000
    clock.now += booking.predicted  # all but the last step has been told of
    assert endpoint.load.unallocated_tokens == 1000
    booking.settle()


def test_where_nobody_is_answered_a_first_token_waits_for_no_batch(manual_clock):
    """Each who predicts one reads the same figures, so that none has to think of the role."""
    clock, model = manual_clock(), Model("m")
    slow = StartingCosts(step_request=0.1, kv_token=1e-3)
    roles = [
        EndpointSettings("http://p:1", role="prefill", costs=slow),
        EndpointSettings("http://d:1", role="decode", costs=slow),
    ]
    fleet = Fleet([(model, roles)], FleetSettings(), clock, NULL_OBSERVER, Random(3))
    prefill, decode = fleet.endpoints(model)
    request = Request(
        id="r",
        model=model,
        kind=Kind.CHAT,
        arrived=clock.now,
        prompt_tokens=1000,
        matches=Matches({prefill.slot: Match(), decode.slot: Match()}),
        slo=Slo(ttft=2.0),
    )
    context = Context("one", clock, Random(3))
    scorer, late = PlacementCost(PlacementCost.Parameters(), context), SloFilter(SloFilter.Parameters(), context)
    for endpoint in (prefill, decode):
        reserve(endpoint.load, 0, 4000)  # there, its prompt computed: a batch where it is answered
    apart, whole = (scorer.explain(request, endpoint) for endpoint in (prefill, decode))
    assert (apart["batch"], whole["batch"] > 4) == (0, True)
    for endpoint, terms in ((prefill, apart), (decode, whole)):
        (score,) = scorer.score(request, [endpoint])
        assert score == pytest.approx(1 / (1 + sum(terms.values())))
        booking = Booking(request, endpoint, clock.now)
        booking.book_prompt(clock.now, reported=True)
        first = sum(terms[part] for part in FirstToken._fields)
        assert booking.predicted == pytest.approx(first)
        booking.settle()
    assert late.filter(request, [prefill, decode]) == [prefill]
    cost = fleet.cost(prefill)
    booking = Booking(request, prefill, clock.now)
    booking.book_prompt(clock.now, reported=True)
    booking.learn_prefill(booking.predicted)
    assert cost.prefill_scale == pytest.approx(1.0), "what was predicted was so"


def test_a_fleet_without_streams_learns_how_fast_it_is(manual_clock):
    """Each is computed as soon as the one before, at a third of what is believed."""
    clock, chance, model = manual_clock(), Random(3), Model("m")
    fleet = Fleet([(model, [EndpointSettings("http://e:1")])], FleetSettings(), clock, NULL_OBSERVER, chance)
    (endpoint,) = fleet.endpoints(model)
    start, cost = fleet.cost(endpoint).start, fleet.cost(endpoint)
    for _ in range(200):
        tokens, steps = chance.choice([200, 2000, 20_000]), chance.choice([10, 100])
        request = Request(
            id="r",
            model=model,
            kind=Kind.CHAT,
            arrived=clock.now,
            prompt_tokens=tokens,
            matches=Matches({endpoint.slot: Match()}),
        )
        booking = Booking(request, endpoint, clock.now)
        booking.book_prompt(clock.now, reported=False)
        seconds = tokens * (start.prefill_token + start.prefill_quadratic * tokens / 2)
        seconds += steps * (start.step + start.step_request + start.kv_token * tokens)
        clock.now += seconds / 3
        booking.learn_whole(steps, seconds / 3)
        booking.settle()
        cost.count_request()
    assert cost.prefill_scale == pytest.approx(1 / 3, rel=0.2)
    assert cost.step_scale == pytest.approx(1 / 3, rel=0.2)


def test_a_wait_for_memory_is_not_learned_as_computing(manual_clock):
    clock, model = manual_clock(), Model("m")
    fleet = Fleet([(model, [EndpointSettings("http://e:1")])], FleetSettings(), clock, NULL_OBSERVER, Random(3))
    (endpoint,) = fleet.endpoints(model)
    cost = fleet.cost(endpoint)
    request = Request(
        id="r", model=model, kind=Kind.CHAT, arrived=0.0, prompt_tokens=2000, matches=Matches({endpoint.slot: Match()})
    )

    def serve(metrics: EngineMetrics) -> float:
        endpoint.metrics = metrics
        for told in (True, False):
            booking = Booking(request, endpoint, clock.now)
            booking.book_prompt(clock.now, reported=told)
            if told:
                booking.learn_prefill(20.0)
            else:
                booking.learn_whole(10, 20.0)
            booking.settle()
        return cost.prefill_scale

    assert serve(EngineMetrics(at=0.0, waiting=30, kv_usage=0.99)) == 1.0
    assert serve(EngineMetrics(at=0.0, waiting=30, kv_usage=0.6)) > 1.5
