"""Covers: gateway/tenants/shared_state.py, gateway/tenants/shared_places.py, gateway/tenants/shared_rows.py,
gateway/tenants/limits_layout.py.

What workers share, in one process: each has a gate of its own on one memory.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.errors import LimitReached
from gateway.tenants.accounts import Account
from gateway.tenants.gate import Gate, Grant
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings, PriceSettings
from gateway.tenants.limits_layout import ACCOUNTS, METERS
from gateway.tenants.limits_table import WAYS, LimitsTable
from gateway.tenants.places import Limit
from gateway.tenants.settings import HEADER, TenantKeySettings, TenantSettings
from gateway.tenants.shared_state import LOOK, SharedState
from gateway.tenants.usage import usage
from tests.support.examples import examples
from tests.tenants.hosts import charged, tenant

PRICES = {"m*": PriceSettings(input=0.7, cached=0.1, output=1 / 3)}


class Host:
    """Several workers' gates, here in one process, on one memory."""

    def __init__(self, workers: int, clock: ManualClock) -> None:
        self._clock = clock
        self._made = LimitsTable.create(workers)
        self.tables = [LimitsTable.join(self._made.fd, number) for number in range(workers)]
        self.gates = [self._gate(table) for table in self.tables]

    def _gate(self, table: LimitsTable) -> Gate:
        return Gate(lambda: PRICES, self._clock, NULL_OBSERVER, SharedState(table, self._clock))

    def kill(self, number: int) -> None:
        self.tables[number].close()

    def restart(self, number: int) -> Gate:
        self.tables[number] = LimitsTable.join(self._made.fd, number)
        self.gates[number] = self._gate(self.tables[number])
        return self.gates[number]

    def close(self) -> None:
        for table in (*self.tables, self._made):
            table.close()


@pytest.fixture
def host(clock):
    made = []

    def make(workers: int = 2) -> Host:
        made.append(Host(workers, clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


def key(caller: Caller, name: str, **limits: int) -> Caller:
    return caller.with_key(TenantKeySettings(name, "0" * 64, caller.tenant.name, limits=LimitSettings(**limits)))


def passes(gate: Gate, caller: Caller, *, tokens: int = 0) -> Grant | None:
    try:
        grant = gate.admit(caller, "m", 0)
    except LimitReached:
        return None
    return charged(grant, tokens)


RED = tenant(
    limits=LimitSettings(tokens_per_minute=1000, requests_per_minute=30, concurrent=8, queued=2),
    per_model={"m": LimitSettings(tokens_in_flight=900)},
    budget=BudgetSettings(5000),
)
CALLERS = [
    RED,
    key(RED, "a", tokens_per_minute=800),
    key(RED, "b", concurrent=2),
    tenant("blue", limits=LimitSettings(tokens_per_minute=90), budget=BudgetSettings(0.001, "money", "day")),
    Caller.of(TenantSettings("default", limits=LimitSettings(requests_per_minute=3)), name="röd", label=HEADER),
]

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "exact", "queue", "unqueue", "settle", "settle", "wait", "restart"]),
        st.integers(0, 1_000_000),
        st.integers(0, 400),
    ),
    max_size=100,
)


def step(what: str, gate: Gate, grant: Grant | None, caller: Caller, tokens: int) -> tuple[Grant | None, str]:
    """One event, and what a client is told of it."""
    try:
        if what == "admit":
            grant = gate.admit(caller, "m", tokens)
            return grant, str(grant.headers())
        if grant is None:
            return None, ""
        if what == "exact":
            grant.exact(tokens, tokens / 7)
        elif what == "queue":
            grant.queue()
        elif what == "unqueue":
            grant.unqueue()
        else:
            grant.settle(tokens, tokens // 3, tokens % 90)
    except LimitReached as error:
        return None, f"{error.message} {error.headers} {error.retry_after}"
    return None, f"{grant.charge} {grant.headers()}"


@given(EVENTS, st.integers(1, 4))
@examples(300)
def test_several_workers_allow_and_charge_exactly_what_one_process_does(events, workers):
    clock = ManualClock(50.0, epoch=1e9)
    one = Gate(lambda: PRICES, clock, NULL_OBSERVER)
    several = Host(workers, clock)
    try:
        grants: list[tuple[Grant, Grant, int]] = []
        for what, which, tokens in events:
            caller, worker = CALLERS[which % len(CALLERS)], which % workers
            mine, theirs, holder = grants[which % len(grants)] if grants else (None, None, worker)
            if what == "wait":
                clock.now += which % 5000 / 100
                continue
            if what == "restart":
                if all(at != worker for _, _, at in grants):
                    several.kill(worker)
                    several.restart(worker)
                continue
            if what == "admit":
                holder = worker
            expected, said = step(what, one, mine, caller, tokens)
            found, told = step(what, several.gates[holder], theirs, caller, tokens)
            assert told == said
            if expected is not None and found is not None:
                grants.append((expected, found, holder))
            for gate in several.gates:
                assert usage(gate, caller) == usage(one, caller)
        random.Random(len(events)).shuffle(grants)
        for mine, theirs, _ in grants:
            mine.settle(3, 1, 2)
            theirs.settle(3, 1, 2)
        for caller in CALLERS:
            for gate in several.gates:
                assert usage(gate, caller) == usage(one, caller)
                for _, meter in gate.meters(caller):
                    place = meter.place
                    assert (place.concurrent.value, place.tokens_in_flight.value, place.queued.value) == (0, 0, 0)
                assert (budget := gate.budget(caller)) is None or budget.in_flight == 0
    finally:
        several.close()


def test_what_a_killed_worker_has_under_way_is_given_back(host, clock):
    workers = host(3)
    caller = tenant(
        limits=LimitSettings(concurrent=3, tokens_in_flight=300, queued=1), budget=BudgetSettings(300.0, "tokens")
    )
    for gate in workers.gates:
        grant = gate.admit(caller, "m", 0)
        grant.exact(90, 0.0)
    grant.queue()
    first, second, third = workers.gates
    assert passes(first, caller) is None
    workers.kill(2)
    clock.now += LOOK
    kept = first.admit(caller, "m", 0)
    kept.queue()
    [(_, meter)] = first.meters(caller)
    assert meter.place.tokens_in_flight.value == 180
    assert first.budget(caller).in_flight == second.budget(caller).in_flight == 180
    kept.settle(0, 0, 0)
    again = workers.restart(2)
    again.admit(caller, "m", 0).settle(10, 0, 0)
    assert third is not again


def test_a_tenant_s_row_is_given_to_another_when_it_rests_and_found_anew(host, clock, monkeypatch):
    monkeypatch.setattr(METERS, "rows", WAYS)
    one, other = host(2).gates
    settings = TenantSettings("default", limits=LimitSettings(requests_per_minute=60))
    callers = [Caller.of(settings, name=f"t{number}", label=HEADER) for number in range(4 * WAYS)]
    first = one.admit(callers[0], "m", 0)
    for round_number in range(3):
        for number, caller in enumerate(callers[1:]):
            (one, other)[(number + round_number) % 2].admit(caller, "m", 0).settle(1, 0, 0)
            clock.now += 1.0
    assert first._scope.meters[0].place.concurrent.value == 1
    assert other.meters(callers[0])[0][1].place.concurrent.value == 1
    first.settle(1, 0, 0)
    assert other.meters(callers[0])[0][1].place.concurrent.value == 0


def test_where_there_is_no_row_each_worker_allows_its_share_and_says_so_once(host, clock, caplog, monkeypatch):
    monkeypatch.setattr(METERS, "rows", WAYS)
    one, other = host(2).gates
    busy = [one.admit(tenant(f"t{n}", limits=LimitSettings(concurrent=1)), "m", 0) for n in range(WAYS)]
    late = tenant("late", limits=LimitSettings(requests_per_minute=10, concurrent=100))
    assert [sum(passes(gate, late) is not None for _ in range(10)) for gate in (one, other)] == [5, 5]
    assert caplog.text.count("memory for limits is full") == 2, "once for each worker"
    for grant in busy:
        grant.settle(0, 0, 0)
    for meter in (gate.meters(late)[0][1] for gate in (one, other)):
        assert meter.place.part(Limit.REQUESTS, 10) == 5
    third = tenant("third", limits=LimitSettings(concurrent=4))
    assert passes(other, third) is not None
    assert other.meters(third)[0][1].place.part(Limit.CONCURRENT, 4) == 4


def test_accounts_without_a_row_are_counted_apart_until_there_is_one(host, clock, monkeypatch):
    monkeypatch.setattr(ACCOUNTS, "rows", WAYS)
    one, other = host(2).gates
    named = [tenant(f"t{number}") for number in range(WAYS - 1)]
    for caller in named:
        one.admit(caller, "m", 0).settle(1, 0, 0)
    of_header = Caller.of(TenantSettings("default"), name="h", label=HEADER)
    open_one = one.admit(of_header, "m", 0)
    late = tenant("late", budget=BudgetSettings(100.0, "tokens", "total"))
    passes(other, late, tokens=50).settle(50, 0, 0)
    assert passes(other, late) is None, "half of the budget is its share"
    open_one.settle(1, 0, 0)
    clock.now += 1.0
    assert passes(other, late, tokens=10) is not None, "the header's row rests, and is this one's now"
    assert one.budget(late).in_flight == 10
    assert "header:h" not in one.state.names()


def test_what_was_kept_is_read_once_for_all(host):
    one, other = (gate.state for gate in host(2).gates)
    assert not other.is_loaded
    account = Account("2026-11-26")
    account.add(5, 1, 2, 0.125)
    one.put("tenant:red", account)
    one.is_loaded = True
    assert other.is_loaded
    assert other.tally("tenant:red").read() == account
    assert other.names() == {"tenant:red"}
    assert one.take_changed() == other.take_changed() == {"tenant:red": account}
    assert one.take_changed() == {}
    one.put_back(["tenant:red", "tenant:gone"])
    assert one.take_changed() == {"tenant:red": account}
    assert (one.leads(), other.leads(), one.leads()) == (True, False, True)
