"""Covers: gateway/flow/queue.py, gateway/flow/obstacle.py, gateway/flow/entry.py.

Requests wait for the endpoint that they are planned for, and for no longer than it has no room.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf

import pytest

from gateway.errors import NoEndpoint, PluginFailed, Saturated
from gateway.flow.entry import Entry, State
from gateway.flow.queue import MOST_ALARMS, MOST_DECISIONS, TICK
from gateway.flow.settings import QueueSettings
from gateway.framework import NoParameters, Plan, Tenant
from gateway.framework.request import Slo
from queues.fair_cost import FairCost
from tests.support.candidates import context
from tests.support.held import Held
from tests.support.waiting import Recorded

LASTING = QueueSettings(max_wait=3600.0, target=3600.0, patience=3600.0)


def fair() -> FairCost:
    return FairCost(NoParameters(), context())


def waiting(held: Held, count: int, **of_each: object) -> list[Entry]:
    """``count`` that wait, behind what fills all endpoints."""
    held.fill()
    entries = [held.entry(**of_each) for _ in range(count)]  # type: ignore[arg-type]
    placed = [held.arrive(entry) for entry in entries]
    assert not any(placed)
    return entries


# Nothing waits


def test_with_room_nothing_waits_and_nothing_is_planned_twice():
    held = Held(8)
    for _ in range(20):
        assert held.arrive(held.entry())
    assert held.queue.waiting == 0
    assert held.decisions == 20
    assert held.queue.pump() == inf
    assert held.decisions == 20


def test_with_room_no_endpoint_is_looked_at_but_the_planned_one():
    held = Held(3)
    held.endpoints = None  # type: ignore[assignment,method-assign]
    assert held.arrive(held.entry())


def test_an_entry_that_was_placed_at_once_has_not_waited_and_keeps_no_prompt():
    held = Held()
    entry = held.entry()
    assert held.arrive(entry)
    assert (entry.state, entry.where, entry.waited, entry.call) == (State.PLACED, None, 0.0, None)


# Room


def test_it_waits_for_its_own_endpoint_and_says_for_what():
    held = Held(1)
    (entry,) = waiting(held, 1)
    assert (entry.where, entry.reason) == (held.all[0], "prefill")
    held.queue.pump()
    assert entry.state is State.WAITING
    held.first_token(held.granted[0])
    assert held.queue.pump() == inf
    assert held.granted[-1] is entry


def test_a_prompt_is_placed_when_computing_has_made_room_though_nothing_is_reported():
    held = Held(1)
    (entry,) = waiting(held, 1)
    held.clock.now += 0.2
    assert held.queue.pump() == inf
    assert entry.state is State.PLACED
    assert entry.waited == pytest.approx(0.2)


def test_what_holds_the_prefix_is_waited_for_although_others_are_free():
    held = Held(2, settings=LASTING)
    first = held.entry(20_000, prefix=19_000)
    assert held.arrive(first)
    at = held.placed[first].placement.decode.endpoint
    second = held.entry(20_000, prefix=19_000)
    assert not held.arrive(second)
    assert second.where is at
    held.first_token(first)
    held.queue.pump()
    assert held.placed[second].placement.decode.endpoint is at


@pytest.mark.parametrize("room", [True, False])
def test_half_way_to_being_late_it_goes_to_another_endpoint_that_has_room(room: bool):
    held = Held(2, settings=QueueSettings(target=2.0, max_wait=100.0, patience=100.0))
    blocker = held.entry(20_000, prefix=19_000)
    assert held.arrive(blocker)
    if not room:
        other = held.entry(20_000)
        assert held.arrive(other)
        assert len({running.placement.decode.endpoint for running in held.placed.values()}) == 2
    entry = held.entry(20_000, prefix=19_000)
    assert not held.arrive(entry)
    where, half = entry.where, entry.due / 2
    assert 0.5 < half < 1.0
    held.pass_time(half - 0.01)
    assert entry.state is State.WAITING
    decisions = held.decisions
    held.pass_time(0.02)
    assert entry.offered
    if room:
        assert held.placed[entry].placement.decode.endpoint is not where
    else:
        assert (entry.state, entry.where) == (State.WAITING, where)
        held.pass_time(entry.due - held.clock.now + 0.01)
        assert entry.late
        assert held.decisions == decisions + 1


def test_what_fails_when_it_is_offered_elsewhere_goes_on_waiting():
    held = Held(2, settings=QueueSettings(target=2.0, max_wait=100.0, patience=100.0))
    assert held.arrive(held.entry(20_000, prefix=19_000))
    assert held.arrive(held.entry(20_000))
    entry = held.entry(20_000, prefix=19_000)
    assert not held.arrive(entry)
    asked: list[Entry] = []

    def fails(one: Entry) -> Plan:
        asked.append(one)
        raise NoEndpoint("a filter removed the others")

    held.decide = fails  # type: ignore[method-assign]
    held.pass_time(entry.due / 2 + 0.01)
    assert asked == [entry]
    assert (entry.offered, entry.state) == (True, State.WAITING)


def test_the_first_in_order_keeps_the_next_room_though_smaller_ones_would_fit():
    held = Held(1, capacity=20_000, settings=LASTING)
    running = [held.entry(5000) for _ in range(2)]
    for entry in running:
        assert held.arrive(entry)
        held.first_token(entry)
    large, small = held.entry(12_000), held.entry(100)
    assert not held.arrive(large)
    assert large.reason == "kv"
    assert not held.arrive(small)
    assert small.reason == "turn"
    held.pass_time(5.0)
    assert held.queue.waiting == 2
    held.end(running[0])
    held.queue.pump()
    assert [entry.state for entry in (large, small)] == [State.PLACED, State.WAITING]
    held.first_token(large)
    held.queue.pump()
    assert small.state is State.PLACED


def test_a_prompt_larger_than_the_memory_bound_is_served_once_nothing_runs():
    held = Held(1, capacity=1000, settings=LASTING)
    running, giant = held.entry(500), held.entry(5000)
    assert held.arrive(running)
    held.first_token(running)
    assert not held.arrive(giant)
    held.end(running)
    held.queue.pump()
    assert giant.state is State.PLACED


def test_a_higher_band_goes_before_who_waits_and_a_lower_one_after():
    held = Held(1, settings=LASTING)
    low, usual, high = [*waiting(held, 1, band=-1), held.entry(band=0), held.entry(band=1)]
    assert not held.arrive(usual)
    assert not held.arrive(high)
    before = len(held.granted)
    for entry in list(held.placed):
        held.first_token(entry)
    held.queue.pump()
    assert held.granted[before:] == [high, usual, low]


def test_a_higher_band_that_comes_when_room_has_come_is_placed_at_once():
    held = Held(1, settings=LASTING)
    (low,) = waiting(held, 1, band=-1)
    for entry in list(held.placed):
        held.first_token(entry)
    high = held.entry(band=1)
    assert held.arrive(high)  # nobody has pumped since
    assert low.state is State.WAITING
    held.queue.pump()
    assert low.state is State.PLACED


def test_what_waits_counts_in_the_choices_of_those_who_come_after():
    held = Held(2, settings=LASTING)
    entries = waiting(held, 20)
    assert {entry.slot for entry in entries} == {0, 1}
    slots = [entry.slot for entry in entries]
    assert abs(slots.count(0) - slots.count(1)) <= 2


def test_an_endpoint_without_a_line_is_offered_to_those_who_wait_elsewhere():
    held = Held(2, capacity=1000, settings=LASTING)
    held.all[1].engine.up = False
    held.arrive(running := held.entry(900))
    held.first_token(running)
    entries = [held.entry(500) for _ in range(2)]
    assert [held.arrive(entry) for entry in entries] == [False, False]
    held.pass_time(1.0)
    assert held.queue.waiting == 2
    held.all[1].engine.up = True
    held.pass_time(TICK)
    assert [entry.state for entry in entries] == [State.PLACED, State.WAITING]
    assert held.placed[entries[0]].placement.decode.endpoint is held.all[1]


def test_after_its_patience_it_is_planned_anew():
    held = Held(1, capacity=10_000, settings=QueueSettings(max_wait=100.0, target=100.0, patience=3.0))
    blocker = held.entry(8000)
    assert held.arrive(blocker)
    held.first_token(blocker)
    first, second = held.entry(5000), held.entry(5000)
    assert not held.arrive(first)
    assert not held.arrive(second)
    held.pass_time(2.9)
    assert second.planned_at == 0.0
    held.pass_time(0.2)
    assert second.planned_at == pytest.approx(3.0)
    assert first.request.ahead == {0: 0.0}
    assert list(second.request.ahead) == [0]


# Prefill and decode


class Apart:
    def plan(self, request, endpoints, run) -> Plan:
        return Plan.of(endpoints[1], prefill=endpoints[0], reason="split")


def test_a_plan_of_two_waits_for_room_at_both():
    held = Held(2, capacity=10_000, settings=LASTING, roles=("prefill", "decode"))
    held.scheduler.handlers = {"default": Apart()}  # type: ignore[dict-item]
    running = [held.entry(4000) for _ in range(1)]
    assert held.arrive(running[0])
    queued, full = held.entry(100), held.entry(9000)
    assert not held.arrive(queued)
    assert (queued.where, queued.reason) == (held.all[0], "prefill")
    held.placed[running[0]].placement.ended("prefill", ok=True)
    held.queue.first_token(held.all[0], None, 0.0)
    held.queue.pump()
    assert queued.state is State.PLACED
    held.placed[queued].placement.ended("prefill", ok=True)
    assert not held.arrive(full)
    assert (full.where, full.reason) == (held.all[1], "kv")
    for entry in (running[0], queued):
        held.end(entry)
    held.queue.pump()
    assert full.state is State.PLACED


# The end of waiting


def test_who_leaves_is_gone_at_once_in_whatever_phase_and_is_charged_for_nothing():
    told = Recorded()
    held = Held(1, order=told, settings=LASTING)
    new, (waits, next_one) = held.entry(), waiting(held, 2)
    held.queue.leave(new)
    held.queue.leave(waits)
    held.queue.leave(waits)
    assert (waits.state, held.queue.waiting) == (State.OVER, 1)
    assert [what for what, entry in told.told if entry is waits] == ["queued", "left"]
    for entry in list(held.placed):
        held.first_token(entry)
    held.queue.pump()
    assert next_one.state is State.PLACED
    held.queue.leave(next_one)  # it is placed: its end is reported otherwise
    assert next_one.state is State.PLACED
    held.end(next_one, output=0, computed=0)
    held.queue.leave(next_one)
    held.queue.settled(next_one, output=5)
    assert [what for what, entry in told.told if entry is next_one] == ["queued", "placed", "settled"]
    assert held.queue.served == 0.0


def test_room_that_a_leaver_kept_goes_to_the_next_one():
    held = Held(1, capacity=20_000, settings=LASTING)
    running = held.entry(10_000)
    assert held.arrive(running)
    held.first_token(running)
    large, small = held.entry(12_000), held.entry(100)
    assert [held.arrive(large), held.arrive(small)] == [False, False]
    held.queue.pump()
    held.queue.leave(large)
    held.queue.pump()
    assert small.state is State.PLACED


def test_at_its_deadline_it_is_refused_with_a_time_to_try_again():
    held = Held(1, capacity=1000)
    held.arrive(running := held.entry(900))
    held.first_token(running)
    entry, impatient = held.entry(), held.entry(timeout=1.5)
    assert [held.arrive(entry), held.arrive(impatient)] == [False, False]
    held.pass_time(1.6)
    assert list(held.refused) == [impatient]
    held.pass_time(5.0)
    error = held.refused[entry]
    assert isinstance(error, Saturated)
    assert error.reason == "expired"
    assert error.retry_after is not None
    assert 1 <= error.retry_after <= 60
    assert (held.queue.waiting, entry.state) == (0, State.OVER)


def test_a_handler_that_fails_while_it_waits_is_its_refusal():
    held = Held(1)
    (entry,) = waiting(held, 1)
    held.scheduler.handlers = {}
    held.pass_time(1.0)
    assert isinstance(held.refused[entry], PluginFailed)


def test_a_booking_that_fails_is_given_back_and_refuses_the_one_request_only():
    told = Recorded()
    held = Held(1, order=told)
    (entry,) = waiting(held, 1)
    place, held.place = held.place, broken  # type: ignore[method-assign]
    held.pass_time(0.5)
    assert isinstance(held.refused[entry], RuntimeError)
    assert [what for what, one in told.told if one is entry] == ["queued", "left"]
    for one in list(held.placed):
        held.end(one)
    with pytest.raises(RuntimeError):
        held.queue.arrive(held.entry())
    held.place = place  # type: ignore[method-assign]
    assert held.arrive(held.entry())


def broken(entry, plan):
    raise RuntimeError("no room in the ledger")


def test_where_the_booking_of_a_newcomer_before_all_others_fails_it_hears_it_at_once_and_they_go_on():
    held = Held(1, settings=LASTING)
    (low,) = waiting(held, 1, band=-1)
    for entry in list(held.placed):
        held.first_token(entry)
    place, held.place = held.place, broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        held.queue.arrive(high := held.entry(band=1))
    assert (high.state, held.refused) == (State.OVER, {})
    held.place = place  # type: ignore[method-assign]
    held.queue.pump()
    assert low.state is State.PLACED


# Engines that come and go


def test_the_line_of_a_dead_endpoint_is_planned_anew_and_the_rest_take_no_more_than_their_windows():
    held = Held(3, settings=LASTING)
    waiting(held, 30)
    dead = held.all[0]
    dead.engine.up = False
    for entry in [entry for entry, one in held.placed.items() if one.placement.decode.endpoint is dead]:
        held.end(entry, output=0)
    held.pass_time(TICK)
    assert all(entry.where is not dead for entry in held.queue.lines)
    window = held.settings.window + 0.1  # one prompt more than fits may be begun
    for endpoint in held.all[1:]:
        assert endpoint.load.prefill_tokens * 1e-4 <= window + held.clock.now


def test_with_all_down_those_who_wait_go_on_waiting_and_newcomers_hear_it_at_once():
    held = Held(2, settings=QueueSettings(max_wait=5.0))
    entries = waiting(held, 6)
    for endpoint in held.all:
        endpoint.engine.up = False
    held.pass_time(1.0)
    assert held.queue.waiting == 6
    assert {entry.reason for entry in entries} >= {"down"}
    late = held.entry()
    assert not held.arrive(late)
    assert isinstance(held.refused[late], NoEndpoint)
    held.all[1].engine.up = True
    for entry in list(held.placed):
        held.end(entry)
    held.pass_time(0.5)
    assert held.queue.waiting < 6
    held.all[1].engine.up = False
    held.pass_time(5.0)
    assert held.queue.waiting == 0
    assert all(isinstance(error, NoEndpoint) for error in held.refused.values())


def test_a_failed_attempt_that_was_placed_elsewhere_keeps_its_charge_and_waits_not_again():
    told = Recorded()
    held = Held(2, order=told, capacity=100_000)
    entry = held.entry(4096, prefix=4096)
    held.arrive(entry)
    running = held.placed[entry]
    other = next(one for one in held.all if one is not running.placement.decode.endpoint)
    held.queue.placed_again(entry, Plan.of(other), running.asked.keys)
    live = held.queue.live
    assert live.live(other, running.asked.keys) == 4096
    assert live.live(running.placement.decode.endpoint, running.asked.keys) == 0
    held.end(entry)
    assert live.live(other, running.asked.keys) == 0
    assert [what for what, _ in told.told] == ["queued", "placed", "settled"]


# Who is in time


def test_who_can_still_be_in_time_goes_before_who_cannot():
    held = Held(1, order=fair(), capacity=5000, settings=QueueSettings(max_wait=100.0, patience=100.0))
    running, old = held.entry(4000), held.entry()
    assert held.arrive(running)
    held.first_token(running)
    assert not held.arrive(old)
    held.pass_time(1.5)
    assert not old.late
    held.pass_time(0.2)
    assert old.late
    assert not held.arrive(young := held.entry())
    held.end(running)
    held.queue.pump()
    assert held.granted == [running, young, old]


def test_what_is_asked_for_says_when_it_is_late():
    held = Held(1)
    strict, usual = held.entry(slo=Slo(ttft=1.0)), held.entry()
    for entry in (strict, usual):
        held.arrive(entry)
    assert strict.due == pytest.approx(1.0 - 0.1 - 0.3)
    assert usual.due == pytest.approx(2.0 - 0.1 - 0.3)


def test_a_request_costs_its_new_tokens_and_its_share_of_the_steps():
    held = Held(1)
    first, again = held.entry(1600, prefix=1600), held.entry(1600, prefix=1600)
    held.arrive(first)
    token = 0.01 / 8 + 1e-4 + 1e-8 * (1600 + 50)
    assert first.cost == pytest.approx(0.16 + 100 * token)
    assert first.tokens == 1700
    held.first_token(first)
    held.arrive(again)
    assert again.cost == pytest.approx(16 * 1e-4 + 100 * token)
    held.end(again, output=10, computed=32)
    assert held.queue.served == pytest.approx(32 * 1e-4 + 10 * token)


# Bounds


def test_one_pump_plans_and_refuses_so_many_and_asks_to_be_called_again():
    held = Held(2, settings=QueueSettings(max_requests=10_000, per_tenant=10_000, max_wait=1e3))
    waiting(held, 600)
    held.clock.now += 2e3
    pumps = 0
    while held.queue.waiting:
        refused, decided = len(held.refused), held.decisions
        again = held.queue.pump()
        assert len(held.refused) - refused <= MOST_ALARMS
        assert held.decisions - decided <= MOST_DECISIONS
        pumps += 1
        if held.queue.waiting:
            assert again <= held.clock.now
    assert pumps >= 3
    assert {error.reason for error in held.refused.values()} == {"expired"}  # type: ignore[attr-defined]
    assert len({error.retry_after for error in held.refused.values()}) > 50  # type: ignore[attr-defined]


def test_one_pump_places_so_many_although_all_have_room():
    held = Held(2, settings=replace(LASTING, max_requests=10_000, per_tenant=10_000))
    waiting(held, 100, tokens=10)
    for entry in list(held.placed):
        held.end(entry)
    placed = []
    while held.queue.waiting:
        before = held.decisions, len(held.granted)
        again = held.queue.pump()
        placed.append(len(held.granted) - before[1])
        assert held.decisions - before[0] <= MOST_DECISIONS
        if held.queue.waiting:
            assert again <= held.clock.now
    assert placed[:3] == [MOST_DECISIONS] * 3


def test_a_decision_with_many_waiting_looks_at_no_more_of_them_than_with_few():
    looked = []
    for many in (100, 5000):
        settings = replace(LASTING, max_wait=1e6, max_requests=10**6, per_tenant=10**6)
        held = Held(2, order=fair(), settings=settings)
        tenants = [Tenant(f"t{number}") for number in range(10)]
        held.fill()
        for number in range(many):
            held.arrive(held.entry(100, tenant=tenants[number % 10]))
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            calls += event == "call"

        for entry in list(held.placed):
            held.first_token(entry)
        held.queue._look_at_all = inf
        before = len(held.granted)
        sys.setprofile(count)
        held.queue.pump()
        sys.setprofile(None)
        looked.append(calls / (len(held.granted) - before))
    assert looked[1] < 1.3 * looked[0]


def test_bands_below_0_are_refused_while_others_have_waited_for_long():
    held = Held(1, capacity=1000, settings=LASTING)
    held.arrive(running := held.entry(900))
    held.first_token(running)
    assert not held.arrive(held.entry())
    assert not held.arrive(batch := held.entry(band=-1))
    assert batch.state is State.WAITING
    held.pass_time(10.1)
    refused = held.entry(band=-1)
    held.arrive(refused)
    error = held.refused[refused]
    assert isinstance(error, Saturated)
    assert error.reason == "saturated"
    assert not held.arrive(usual := held.entry())
    assert usual.state is State.WAITING


def test_who_comes_too_late_for_its_deadline_is_refused_at_once():
    held = Held(1, order=fair(), settings=QueueSettings(max_wait=60.0, target=3600.0))
    waiting(held, 30)
    hurried = held.entry(timeout=0.5)
    held.arrive(hurried)
    error = held.refused[hurried]
    assert isinstance(error, Saturated)
    assert error.reason == "late"
    assert hurried.state is State.NEW
    other = held.entry(timeout=0.5, tenant=Tenant("other"))  # whose turn is the next
    held.arrive(other)
    assert other.state is State.WAITING


# What is left of them


def test_whoever_waits_no_more_is_not_kept_nor_behind_what_was_ahead():
    held = Held(2)
    entries = waiting(held, 9)
    assert any(entry.request.ahead for entry in entries)
    for entry in entries:
        held.queue.leave(entry)
    assert held.queue._waiters._alarms.entries == 0
    assert all(not entry.request.ahead and entry.call is None for entry in entries)


def test_a_placed_request_is_not_behind_what_was_ahead_of_it():
    held = Held(2)
    entries = waiting(held, 9)
    while any(entry.state is State.WAITING for entry in entries):
        held.clock.now += 0.1
        held.queue.pump()
    assert all(not entry.request.ahead for entry in entries if entry.state is State.PLACED)
    assert held.queue._waiters._alarms.entries == 0
