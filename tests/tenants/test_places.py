from __future__ import annotations

from gateway.tenants.accounts import Account
from gateway.tenants.gcra import CELLS
from gateway.tenants.places import OwnCounter, OwnState


def test_a_counter_comes_back_to_exactly_zero():
    counter = OwnCounter()
    for amount in (10**15, 1, -(10**15), -1):
        counter.add(amount)
    assert counter.value == 0


def test_what_one_process_keeps(clock):
    state = OwnState(clock, CELLS)
    tally = state.tally("key:ci")
    tally.charge(10, 4, 2, 0.5)
    assert state.tally("key:ci") is tally
    account = tally.read()
    assert account.day == "2026-11-26"
    assert (account.today.requests, account.today.prompt, account.today.cost) == (1, 10, 0.5)
    assert state.take_changed() == {"key:ci": account}
    assert state.take_changed() == {}
    state.put("tenant:red", Account("2026-11-25"))
    state.put_back(["key:ci", "tenant:gone"])
    assert state.take_changed() == {"key:ci": account}
    assert state.names() == {"key:ci", "tenant:red"}
    assert state.leads()
    assert not state.meter("tenant:red", "").look()
    state.forget("key:ci")
    assert state.names() == {"tenant:red"}


def test_the_tally_of_a_new_day_begins_at_zero(clock):
    tally = OwnState(clock, CELLS).tally("tenant:red")
    tally.charge(10, 0, 0, 0.0)
    clock.now += 86400.0
    assert tally.read().used("day").prompt == 0
    assert tally.read().used("total").prompt == 10
