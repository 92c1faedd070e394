"""Covers: gateway/flow/placed.py, gateway/flow/queue.py.

What is placed while nobody waits, without an entry, has the same consequences as if it had gone through the queue.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.flow.entry import Entry, State
from gateway.flow.settings import QueueSettings
from gateway.framework import NoParameters, Order, Tenant
from queues.earliest_deadline import EarliestDeadline
from queues.fair_cost import FairCost
from queues.fair_requests import FairRequests
from queues.fair_tokens import FairTokens
from queues.first_come import FirstCome
from tests.support.candidates import context
from tests.support.examples import examples
from tests.support.held import Held

TENANTS = [Tenant("a"), Tenant("b", 2.0), Tenant("c", 0.5)]
ORDERS = [EarliestDeadline, FairCost, FairRequests, FairTokens, FirstCome]

ACTIONS = st.one_of(
    st.tuples(
        *(st.just("arrive"), st.integers(1, 6000), st.sampled_from([0, 3000]), st.sampled_from(TENANTS)),
        *(st.integers(-1, 1), st.floats(0.1, 20.0)),
    ),
    st.tuples(st.sampled_from(["leave", "first-token", "end", "cancel", "down", "up", "retry"]), st.integers(0, 50)),
    st.tuples(st.just("wait"), st.floats(0, 3)),
    st.just(("pump",)),
)


class Play:
    """The same actions in the same world, with or without entries for what finds room at once."""

    def __init__(self, kind: type, *, at_once: bool) -> None:
        order: Order = kind(getattr(kind, "Parameters", NoParameters)(), context())
        settings = QueueSettings(max_requests=12, per_tenant=6, max_tokens=40_000)
        self.held = Held(2, order=order, capacity=20_000, settings=settings, at_once=at_once)
        self.entries: list[Entry] = []

    def act(self, action: tuple[Any, ...]) -> None:
        held, (what, *of) = self.held, action
        running = list(held.placed)
        if what == "arrive":
            tokens, prefix, tenant, band, timeout = of
            entry = held.entry(tokens, prefix=min(prefix, tokens), tenant=tenant, band=band, timeout=timeout)
            self.entries.append(entry)
            held.arrive(entry)
        elif what == "leave" and self.entries:
            held.queue.leave(self.entries[of[0] % len(self.entries)])
        elif what == "first-token" and running:
            held.clock.now += 0.01
            held.first_token(running[of[0] % len(running)])
        elif what in ("end", "cancel") and running:
            given = {} if what == "end" else {"output": 0.0, "computed": 0}
            held.end(running[of[0] % len(running)], **given)
        elif what == "retry" and running:
            one = held.placed[running[of[0] % len(running)]]
            held.queue.placed_again(one.entry, one.placement.plan, one.asked.keys)
        elif what in ("down", "up"):
            held.all[of[0] % 2].engine.up = what == "up"
        elif what == "wait":
            held.pass_time(of[0])
        elif what == "pump":
            held.queue.pump()

    def seen(self) -> tuple[Any, ...]:
        held, queue = self.held, self.held.queue
        now = held.clock.now
        return (
            [(entry.request.id, entry.waited) for entry in held.granted],
            [(entry.request.id, run.placement.plan.decode.name) for entry, run in held.placed.items()],
            [(entry.request.id, str(error)) for entry, error in held.refused.items()],
            [(entry.request.id, entry.where and entry.where.name, entry.reason, entry.late) for entry in queue.lines],
            (queue.served, queue._drain.rate(now)),
            [(one.load.requests, one.load.kv_tokens, queue.windows.factor(one)) for one in held.all],
            [queue.room.fullness(one, now) for one in held.all],
            [queue.live.saved(one) for one in held.all],
        )


@given(st.sampled_from(ORDERS), st.lists(ACTIONS, max_size=60))
@examples(150)
def test_all_goes_as_if_each_had_gone_through_the_queue(kind, actions):
    light, through = Play(kind, at_once=True), Play(kind, at_once=False)
    for action in actions:
        light.act(action)
        through.act(action)
        assert light.seen() == through.seen()
    for play in (light, through):
        while play.held.placed:
            play.held.end(next(iter(play.held.placed)))
        assert not play.held.queue.live.new
        assert not any(shared.counts for shared in play.held.queue.live._endpoints.values())


def test_it_makes_no_entry_and_is_settled_once():
    held = Held(1, order=FairCost(NoParameters(), context()), at_once=True)
    entry = held.entry()
    assert held.arrive(entry)
    assert entry.state is State.NEW
    placed = held.placed[entry].entry
    held.end(entry)
    served = held.queue.served
    assert served > 0
    assert held.queue.settled(placed, output=9.0) == 0.0
    assert held.queue.served == served


def test_an_order_that_counts_what_is_placed_while_nobody_waits_is_told_of_each():
    class Counts(FirstCome):
        lends_idle = False
        told = 0

        def placed(self, waiting, /) -> None:
            self.told += 1

    order = Counts(NoParameters(), context())
    held = Held(1, order=order, at_once=True)
    assert held.queue.counts_all
    assert held.arrive(held.entry())
    assert order.told == 1


@pytest.mark.parametrize("kind", ORDERS)
def test_what_comes_while_somebody_waits_goes_through_the_queue(kind):
    order = kind(getattr(kind, "Parameters", NoParameters)(), context())
    held = Held(1, order=order, at_once=True)
    while held.arrive(held.entry()):
        pass
    assert held.queue.waiting
    assert not held.arrive(held.entry())
