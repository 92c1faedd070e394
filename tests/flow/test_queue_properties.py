"""Covers: gateway/flow/queue.py, gateway/flow/entry.py, gateway/flow/shed.py.

What holds of a queue whatever happens, with the real scheduler, ledgers and orders, in virtual time.
"""

from __future__ import annotations

from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from gateway.flow.entry import Entry, State
from gateway.flow.settings import QueueSettings
from gateway.framework import NoParameters, Order, Tenant
from queues.earliest_deadline import EarliestDeadline
from queues.fair_cost import FairCost
from queues.fair_tokens import FairTokens
from queues.first_come import FirstCome
from tests.support.candidates import context
from tests.support.examples import examples
from tests.support.held import Held

TENANTS = [Tenant("a"), Tenant("b", 2.0), Tenant("c", 0.5)]
ORDERS = {"cost": FairCost, "tokens": FairTokens, "first": FirstCome, "deadline": EarliestDeadline}

ACTIONS = st.one_of(
    st.tuples(
        st.just("arrive"), st.integers(1, 6000), st.sampled_from(TENANTS), st.integers(-1, 1), st.floats(0.1, 20.0)
    ),
    st.tuples(st.sampled_from(["leave", "first-token", "end", "cancel", "down", "up", "drain"]), st.integers(0, 50)),
    st.tuples(st.just("scrape"), st.integers(0, 1), st.floats(0, 1), st.integers(0, 500)),
    st.tuples(st.just("wait"), st.floats(0, 3)),
    st.just(("pump",)),
)


def order(name: str) -> Order:
    kind = ORDERS[name]
    return kind(getattr(kind, "Parameters", NoParameters)(), context())


def settings(**given: object) -> QueueSettings:
    return QueueSettings(**{"max_requests": 12, "per_tenant": 6, "max_tokens": 40_000, **given})  # type: ignore[arg-type]


class Play:
    """Does what it is told, and looks after each step whether all is well."""

    def __init__(self, name: str) -> None:
        self.held = Held(2, order=order(name), capacity=20_000, settings=settings())
        self.entries: list[Entry] = []
        self.left: set[Entry] = set()
        self.ended: set[Entry] = set()

    def act(self, action: tuple) -> None:
        held, (what, *of) = self.held, action
        running = list(held.placed)
        if what == "arrive":
            entry = held.entry(of[0], tenant=of[1], band=of[2], timeout=of[3])
            self.entries.append(entry)
            held.arrive(entry)
        elif what == "leave" and self.entries:
            entry = self.entries[of[0] % len(self.entries)]
            if entry.state in (State.NEW, State.WAITING):
                self.left.add(entry)
            held.queue.leave(entry)
        elif what == "first-token" and running:
            held.first_token(running[of[0] % len(running)])
        elif what in ("end", "cancel") and running:
            entry = running[of[0] % len(running)]
            self.ended.add(entry)
            held.end(entry, **({} if what == "end" else {"output": 0.0, "computed": 0}))
        elif what in ("down", "up"):
            held.all[of[0] % 2].engine.up = what == "up"
        elif what == "drain":
            held.all[of[0] % 2].draining ^= True
        elif what == "scrape":
            held.scrape(held.all[of[0]], capacity=20_000, usage=of[1], running=of[2])
        elif what == "wait":
            held.pass_time(of[0])
        elif what == "pump":
            held.queue.pump()
        self.look()

    def look(self) -> None:
        held, lines = self.held, self.held.queue.lines
        assert set(lines) == {one for one in self.entries if one.state is State.WAITING}
        assert len(held.queue._waiters._alarms) == len(lines)
        assert lines.total.requests <= 12
        assert lines.total.tokens <= 40_000
        assert len(held.granted) == len(set(held.granted))  # none is granted twice
        for entry in self.entries:
            fate = [
                entry in lines,
                entry in held.placed,
                entry in self.ended,
                entry in held.refused,
                entry in self.left,
            ]
            assert sum(fate) == 1 or (entry in self.left and entry in held.refused and entry.state is State.NEW)
            assert (entry in held.granted) == (entry in held.placed or entry in self.ended)


@given(st.sampled_from(sorted(ORDERS)), st.lists(ACTIONS, max_size=60))
@examples(150)
def test_whatever_happens_each_is_granted_or_refused_once_and_nothing_is_left_in_the_end(name, actions):
    play = Play(name)
    for action in actions:
        play.act(action)
    held = play.held
    for endpoint in held.all:
        endpoint.engine.up, endpoint.draining = True, False
    for _ in range(200):
        for entry in list(held.placed):
            play.ended.add(entry)
            held.end(entry)
        held.queue.pump()
        if not held.queue.waiting and not held.placed:
            break
        held.clock.now += 0.1
    play.look()
    assert held.queue.waiting == 0
    assert not held.placed
    assert all(one.load.requests == one.load.kv_tokens == one.load.prefill_tokens == 0 for one in held.all)
    live = held.queue.live
    assert all(not shared.counts for shared in live._endpoints.values())


@given(st.lists(st.tuples(st.integers(1, 6000), st.sampled_from(TENANTS)), min_size=1, max_size=30), st.data())
@examples(80)
def test_an_endpoint_with_room_for_who_is_first_there_never_stays_idle(requests, data):
    held = Held(
        2, order=order("cost"), capacity=20_000, settings=settings(max_requests=100, per_tenant=100, max_tokens=10**9)
    )
    for tokens, tenant in requests:
        held.arrive(held.entry(tokens, tenant=tenant))
    for _ in range(200):
        held.queue.pump()
        for endpoint in held.all:
            first = held.queue.lines.first(endpoint.slot)
            if first is None:
                continue
            assert first.call is not None
            assert held.queue.room.binding(endpoint, first.request, first.call.keys, held.clock.now) != ""
        if not held.placed:
            break
        running = list(held.placed)
        entry = running[data.draw(st.integers(0, len(running) - 1))]
        if data.draw(st.booleans()):
            held.first_token(entry)
        else:
            held.end(entry)
    assert held.queue.waiting == 0 or held.placed


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.sampled_from([0, 1])), min_size=20, max_size=60),
    st.lists(st.integers(0, 5), max_size=20),
)
@examples(80)
def test_of_two_with_work_waiting_neither_gets_more_than_one_largest_request_more(requests, leaving):
    """Start-time fair queueing's bound, by weight, in what is placed while both wait for one endpoint."""
    lasting = settings(max_requests=1000, per_tenant=1000, max_tokens=10**9, max_wait=1e6, target=1e6, patience=1e6)
    held = Held(1, order=order("cost"), settings=lasting)
    held.fill()
    tenants, waiting, largest = TENANTS[:2], {}, 0.0
    for tokens, which in requests:
        entry = held.entry(tokens, tenant=tenants[which])
        held.arrive(entry)
        waiting[entry] = which
        largest = max(largest, entry.cost / tenants[which].weight)
    for number in leaving:  # who leaves is charged nothing
        if number < len(waiting):
            entry = list(waiting)[number]
            held.queue.leave(entry)
            del waiting[entry]
    had = [0.0, 0.0]
    for _ in range(200):
        if not all(which in waiting.values() for which in (0, 1)):
            break
        before = len(held.granted)
        for entry in list(held.placed):
            held.first_token(entry)
        held.clock.now += 0.01
        held.queue.pump()
        for entry in held.granted[before:]:
            both = all(which in waiting.values() for which in (0, 1))
            which = waiting.pop(entry)
            if both:
                had[which] += entry.cost / tenants[which].weight
                assert abs(had[0] - had[1]) <= largest or isclose(abs(had[0] - had[1]), largest)


def test_what_was_charged_for_one_that_never_ran_is_given_back():
    lasting = settings(max_requests=1000, per_tenant=1000, max_wait=1e6, target=1e6, patience=1e6)
    held = Held(1, order=order("cost"), settings=lasting)
    held.fill()
    a, b = TENANTS[0], Tenant("b")
    mine, others = [], []
    for entries, tenant in [(mine, a)] * 4 + [(others, b)] * 4:
        entries.append(held.entry(tenant=tenant))
        entries[-1].arrived += 1e-6 * len([*mine, *others])  # time itself would make room
        assert not held.arrive(entries[-1])

    before = len(held.granted)

    def place(count: int) -> list[Entry]:
        """Compute prompts until so many are placed of those who waited."""
        while len(held.granted) < before + count:
            held.first_token(next(one for one, running in held.placed.items() if running.placement.decode._prefill))
            held.queue.pump()
        return held.granted[before:]

    assert place(1) == [mine[0]]
    held.end(mine[0], output=0.0, computed=0)  # its client left before it was sent
    assert place(3)[1:3] == [mine[1], others[0]]
