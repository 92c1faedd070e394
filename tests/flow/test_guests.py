"""Covers: gateway/flow/guests.py, gateway/flow/asking.py, gateway/flow/questions.py.

One queue for the workers of a host, in virtual time: whatever dies, and whenever who hears of it.
"""

from __future__ import annotations

from collections import Counter
from math import isclose
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import NoEndpoint, PluginFailed, Saturated
from gateway.flow.guests import UNTAKEN
from gateway.flow.live_kv import LiveKv
from gateway.flow.questions import LEADING, Message, Refusal, Stay, keys_of, matches_of, question, request_of
from gateway.flow.settings import QueueSettings
from gateway.framework import Plan, Tenant
from gateway.framework.request import Slo
from tests.support.examples import examples
from tests.support.hosted import Hosted, Waiter

TENANTS = [Tenant("a"), Tenant("b", 2.0)]
LASTING = QueueSettings(max_requests=1000, per_tenant=1000, max_tokens=10**9, max_wait=1e6, target=1e6, patience=1e6)
NUMBERS = st.integers(0, 50)
ACTIONS = st.one_of(
    st.tuples(st.just("comes"), NUMBERS, st.integers(1, 6000), st.sampled_from(TENANTS), st.floats(0.5, 20.0)),
    st.tuples(st.just("deliver"), NUMBERS),
    st.tuples(st.just("deliver"), NUMBERS),
    st.tuples(st.just("deliver"), NUMBERS),
    st.tuples(st.sampled_from(["leaves", "first-token", "ends", "dies", "starts", "cut", "down", "up"]), NUMBERS),
    st.tuples(st.just("wait"), st.floats(0, 1)),
    st.just(("pump", 0)),
    st.just(("all", 0)),
)


def act(host: Hosted, what: str, *of: Any) -> None:
    numbers = sorted(host.workers)
    running = [one for one in host.waiters if one.placement is not None and "ended" not in one.fates]
    if what == "comes":
        number, tokens, tenant, timeout = of
        worker = host.workers[numbers[number % len(numbers)]]
        worker.comes(host.entry(tokens, tenant=tenant, timeout=timeout))
    elif what == "deliver" and (full := host.full_pipes()):
        host.deliver(full[of[0] % len(full)])
    elif what == "all":
        host.deliver_all()
    elif what == "leaves" and host.waiters:
        waiter = host.waiters[of[0] % len(host.waiters)]
        waiter.worker.leaves(waiter)
    elif what == "first-token" and running:
        running[of[0] % len(running)].placement.decode.computed()
    elif what == "ends" and running:
        waiter = running[of[0] % len(running)]
        waiter.worker.ends(waiter)
    elif what == "dies" and len(numbers) > 1:
        host.dies(numbers[of[0] % len(numbers)])
    elif what == "starts":
        gone = sorted({0, 1, 2} - set(numbers))
        if gone and not any(gone[0] in pair for pair in host.pipes):  # all have heard of its end
            host.starts(gone[0])
    elif what == "cut" and len(numbers) > 1:
        one = numbers[of[0] % len(numbers)]
        other = next(each for each in numbers if each != one)
        host.cut(one, other)
    elif what in ("down", "up"):
        host.world.all[of[0] % 2].engine.up = what == "up"
    elif what == "wait":
        host.world.clock.now += of[0]
        host.pump()
    elif what == "pump":
        host.pump()


@given(st.lists(ACTIONS, max_size=80))
@examples(150)
def test_whatever_dies_each_is_placed_or_refused_once_and_nothing_is_left(actions):
    host = Hosted(3, capacity=20_000, settings=QueueSettings(max_requests=12, per_tenant=8, max_tokens=40_000))
    for action in actions:
        act(host, *action)
        for waiter in host.waiters:
            assert len([fate for fate in waiter.fates if fate != "ended"]) <= 1
    for endpoint in host.world.all:
        endpoint.engine.up = True
    for _ in range(400):
        host.deliver_all()
        for waiter in host.waiters:
            if waiter.placement is not None and "ended" not in waiter.fates:
                waiter.worker.ends(waiter)
        host.deliver_all()
        host.pump()
        if all(waiter.fates for waiter in host.waiters) and not host.full_pipes():
            break
        host.world.clock.now += 0.1
    for waiter in host.waiters:
        if waiter.placement is not None and "ended" not in waiter.fates:
            waiter.worker.ends(waiter)
    host.deliver_all()
    assert all(waiter.fates in (["placed", "ended"], ["refused"], ["left"]) for waiter in host.waiters)
    for worker in host.workers.values():
        assert len(worker.guests) == len(worker.asking) == worker.held.waiting == 0
        assert not worker.guests._kept
    assert all(one.load.requests == one.load.kv_tokens == one.load.prefill_tokens == 0 for one in host.world.all)
    assert all(one.in_flight == 0 for one in host.world.all)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.sampled_from([0, 1])), min_size=20, max_size=60),
    st.sampled_from([(0, 1), (1, 0), (1, 2), (1, 1)]),
)
@examples(30)
def test_of_two_tenants_at_two_workers_neither_gets_more_than_one_largest_request_more(requests, at):
    """The bound that start-time fair queueing has in one queue."""
    host = Hosted(3, 1, settings=LASTING)
    filling = host.workers[0]
    fill(host)
    waiting: dict[str, int] = {}
    for tokens, which in requests:
        waiter = host.workers[at[which]].comes(host.entry(tokens, tenant=TENANTS[which]))
        waiting[waiter.entry.request.id] = which
        host.deliver_all()
    costs = {entry.request.id: entry.cost for entry in filling.held.lines}
    assert costs.keys() == waiting.keys()
    largest = max(costs[one] / TENANTS[which].weight for one, which in waiting.items())
    had = [0.0, 0.0]
    for _ in range(300):
        if not all(which in waiting.values() for which in (0, 1)):
            break
        before = len(host.granted)
        for waiter in host.waiters:
            if waiter.placement is not None and "ended" not in waiter.fates:
                waiter.placement.decode.computed()
        host.world.clock.now += 0.01
        filling.held.look_at(host.world.all[0])
        host.pump()
        host.deliver_all()
        for one in host.granted[before:]:
            both = all(which in waiting.values() for which in (0, 1))
            which = waiting.pop(one)
            if both:
                had[which] += host.costs[one] / TENANTS[which].weight
                assert abs(had[0] - had[1]) <= largest or isclose(abs(had[0] - had[1]), largest)
    assert not all(which in waiting.values() for which in (0, 1))


def filled(workers: int = 2, by: int = 0) -> Hosted:
    """One endpoint without room, and whoever comes at worker 1 asks worker 0."""
    host = Hosted(workers, 1, settings=LASTING)
    fill(host, by)
    return host


def fill(host: Hosted, by: int = 0) -> None:
    """Requests at this worker until the next would wait."""
    while (waiter := host.workers[by].comes(host.entry(1100))).fates:
        pass
    host.workers[by].leaves(waiter)
    host.deliver_all()


def test_room_is_kept_until_it_is_taken_and_not_longer_than_it_may_be():
    host = filled()
    waiter = host.workers[1].comes(host.entry(1000))
    host.deliver_all()
    assert not waiter.fates
    [endpoint] = host.world.all
    for each in host.waiters:
        if each.placement is not None:
            each.worker.ends(each)
    host.pump()
    assert (endpoint.load.requests, waiter.fates) == (1, [])  # kept for it, and on its way to worker 1
    again = host.pump()
    assert again == host.world.clock.now + UNTAKEN
    host.world.clock.now += UNTAKEN
    host.pump()
    assert endpoint.load.requests == 0
    host.deliver_all()
    assert (endpoint.load.requests, waiter.fates) == (1, ["placed"])
    waiter.worker.ends(waiter)
    host.deliver_all()
    assert (endpoint.load.requests, len(host.workers[0].guests)) == (0, 0)


def test_the_next_lead_has_all_who_wait_in_the_order_in_which_they_came():
    host = filled(3, by=2)
    came = []
    for number in (1, 2, 1, 2, 2, 1):
        host.world.clock.now += 1e-6
        came.append(host.workers[number].comes(host.entry(1000)))
        host.deliver_all()
    host.dies(0)
    host.deliver_all()
    lines = host.workers[1].held.lines
    assert len(lines) + len([one for one in came if one.fates]) == 6
    assert Counter(waiter.asked for waiter in came if waiter.worker.number == 2) == {2: 3}
    for _ in range(50):
        host.world.clock.now += 0.01
        host.pump()
        host.deliver_all()
        for waiter in host.waiters:
            if waiter.placement is not None and "ended" not in waiter.fates:
                waiter.placement.decode.computed()
    assert [waiter.fates for waiter in came] == [["placed"]] * 6
    assert host.granted[-6:] == [waiter.entry.request.id for waiter in came]


def test_what_is_refused_is_told_so_with_the_same_error():
    host = filled()
    [placed] = [host.workers[0].comes(host.entry(10)) for _ in range(1)]
    assert not placed.fates
    hurried = host.workers[1].comes(host.entry(1000, timeout=0.01))
    host.deliver_all()
    host.world.clock.now += 0.02
    host.pump()
    host.deliver_all()
    assert hurried.fates == ["refused"]
    assert hurried.error.reason in ("late", "expired")
    assert hurried.error.retry_after >= 1
    assert str(hurried.error).startswith("Model 'm' is full")


def granted() -> tuple[Hosted, Waiter]:
    """One that waited and has just been granted room, which its worker has not heard yet."""
    host = filled()
    waiter = host.workers[1].comes(host.entry(1000))
    host.deliver_all()
    for each in host.waiters:
        if each.placement is not None:
            each.worker.ends(each)
    host.pump()
    return host, waiter


def test_who_leaves_just_when_it_is_granted_room_gives_it_back():
    host, waiter = granted()
    assert host.world.all[0].load.requests == 1
    host.workers[1].leaves(waiter)
    host.deliver_all()
    assert waiter.fates == ["left"]
    assert host.world.all[0].load.requests == 0
    assert len(host.workers[0].guests) == 0


@pytest.mark.parametrize("back", [True, False])
def test_who_cannot_be_placed_where_it_was_granted_room_asks_again(back):
    """And hears what holds then: there is room, or no engine."""
    host, waiter = granted()
    [endpoint] = host.world.all
    endpoint.engine.up = False
    host.deliver((0, 1))
    assert (waiter.fates, waiter.asked) == ([], 2)
    endpoint.engine.up = back
    host.deliver_all()
    host.pump()
    host.deliver_all()
    assert (waiter.fates, waiter.asked) == (["placed" if back else "refused"], 2)
    assert back or isinstance(waiter.error, NoEndpoint)
    assert endpoint.load.requests == len(host.workers[0].guests) == back


class Apart:
    def plan(self, request, endpoints, run) -> Plan:
        return Plan.of(endpoints[1], prefill=endpoints[0], reason="split")


def test_of_a_plan_of_two_legs_room_is_kept_for_each():
    host = Hosted(2, 2, settings=LASTING, roles=("prefill", "decode"), capacity=10_000)
    host.world.scheduler.handlers = {"default": Apart()}
    first = host.workers[1].comes(host.entry(4000))
    waiter = host.workers[1].comes(host.entry(500))
    host.deliver_all()
    assert (first.fates, waiter.fates) == (["placed"], [])
    prefill, decode = host.world.all
    [guest] = host.workers[0].held.lines
    assert (guest.where, guest.reason) == (prefill, "prefill")
    first.placement.ended("prefill", ok=True)
    host.workers[0].held.look_at(prefill)
    host.pump()
    assert (prefill.load.prefill_tokens, decode.load.kv_tokens) == (500, 4500)
    host.deliver_all()
    assert waiter.fates == ["placed"]
    assert (prefill.load.prefill_tokens, decode.load.kv_tokens) == (500, 4500)
    for each in (first, waiter):
        each.placement.cancel()
    assert all(one.load.requests == one.in_flight == 0 for one in (prefill, decode))


def test_what_a_question_tells_is_what_the_lead_plans_by():
    host = Hosted(1, 2, capacity=10_000)
    world = host.world
    entry = host.entry(2000, slo=Slo(1.0, None), tenant=Tenant("b", 2.0), band=3)
    world.index.placed(entry.call.keys, world.all[1])  # it holds the prompt, as far as is known
    request, keys = entry.call
    request.matches = world.index.match(keys, request.prompt_tokens, world.all)
    assert request.matches[world.all[1].slot].tokens > 0
    request.matches.room = {world.all[0].slot: 7}
    asked = question(1, request, keys, Stay(0.5, 9.0, 10, "http://e1:1"), world.all)
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=Message)
    assert told == asked
    again = request_of(told, world.model)
    matches = matches_of(told, world.all)
    assert all(matches[one.slot] == request.matches[one.slot] for one in world.all)
    assert matches.room == request.matches.room
    for name in (
        "id",
        "model",
        "kind",
        "arrived",
        "stream",
        "expected_output",
        "slo",
        "prompt_tokens",
        "tenant",
        "band",
    ):
        assert getattr(again, name) == getattr(request, name), name
    assert again.token_ids == request.token_ids[:LEADING]
    live = LiveKv()
    live.hold(world.all[0], keys)
    assert live.live(world.all[0], keys_of(told)) == live.live(world.all[0], keys) > 0


def test_errors_are_raised_as_they_were():
    for error in (Saturated("full", reason="late", retry_after=3.0), NoEndpoint("none"), PluginFailed("it is broken")):
        again = Refusal.of(1, error).error()
        assert type(again) is type(error)
        assert (str(again), again.reason, again.retry_after) == (str(error), error.reason, error.retry_after)
    assert isinstance(Refusal.of(1, ValueError("a defect")).error(), PluginFailed)
