"""Budgets that several hosts spend: each hears what the others have spent, and all together spend no more."""

from __future__ import annotations

import asyncio

import pytest

from gateway.sharing.settings import SharingSettings
from gateway.tenants.limit_settings import BudgetSettings
from tests.support.valkey import needs_valkey
from tests.support.wait import eventually, until
from tests.tenants.hosts import Host, tenant

pytestmark = needs_valkey


@pytest.mark.parametrize("unit", ["tokens", "money"])
async def test_a_budget_is_what_all_hosts_have_spent(hosts, unit):
    one, other = await hosts()
    amount = 1000.0 if unit == "tokens" else 0.001
    caller = tenant(budget=BudgetSettings(amount, unit, "total"))
    for host, tokens in ((one, 600), (other, 399)):
        [grant] = await host.passes(caller, 1, tokens)
        grant.settle(tokens, 0, 0)
    for host in (one, other):
        await eventually(
            lambda host=host: host.gate.budget(caller).spent == pytest.approx(0.999 * amount), "it knows both"
        )
    [grant] = await one.passes(caller, 1, 1)
    grant.settle(1, 0, 0)
    await eventually(lambda: other.gate.budget(caller).spent == pytest.approx(amount), "it knows that all is spent")
    assert await other.admit(caller) is None


@pytest.mark.parametrize("size", [100, 1])
async def test_hosts_together_spend_no_more_of_a_budget_than_what_was_in_flight(hosts, size):
    """As many requests at once at each of three hosts as would spend it alone, again and again."""
    several = await hosts(3)
    amount = 30 * size
    caller = tenant(budget=BudgetSettings(amount, per="total"))
    spent = 0
    for _ in range(4):
        for granted in await asyncio.gather(*[one.passes(caller, 40, size) for one in several]):
            for grant in granted:
                grant.settle(size, 0, 0)
                spent += size
    assert amount <= spent <= amount + 3 * size, "all of it, and the last request that each host let through"
    for one in several:
        await eventually(lambda one=one: one.gate.budget(caller).spent == spent, "all know it")
        assert await one.admit(caller, size) is None


async def test_a_budget_that_only_one_host_spends_is_all_its_own(hosts):
    one, other = await hosts(2)
    caller = tenant(budget=BudgetSettings(1000, per="total"))
    [grant] = await other.passes(caller, 1, 10)
    grant.settle(10, 0, 0)
    grants = await one.passes(caller, 99, 10)
    assert len(grants) == 99
    assert await one.admit(caller) is None
    grants[0].settle(0, 0, 0)
    assert await one.admit(caller) is not None, "what was not needed may be spent"


async def test_a_host_that_dies_takes_along_what_it_spent_and_leaves_what_it_might_have(hosts, monkeypatch):
    monkeypatch.setattr("gateway.tenants.budget_parts.LIVES", 1.0)
    one, other = await hosts(2)
    caller = tenant(budget=BudgetSettings(1000, per="total"))
    [grant] = await one.passes(caller, 1, 100)
    grant.settle(100, 0, 0)
    await eventually(lambda: other.gate.budget(caller).spent == 100, "the other knows it")
    await one.divider.close()

    async def passes() -> bool:
        return await other.admit(caller, 100) is not None

    for _ in range(9):
        await until(passes, "its part is free")
    assert await other.admit(caller) is None


async def test_a_host_that_is_started_again_counts_what_was_kept_once(hosts, server):
    one, other = await hosts()
    caller = tenant(budget=BudgetSettings(1000, per="total"))
    [grant] = await one.passes(caller, 1, 100)
    grant.settle(100, 0, 0)
    await eventually(lambda: other.gate.budget(caller).spent == 100, "the other knows it")
    kept = one.gate.account("tenant:red")
    again = Host(SharingSettings(server.settings.url))
    try:
        again.state.put("tenant:red", kept)
        [grant] = await again.passes(caller, 1, 10)
        grant.settle(10, 0, 0)
        await eventually(lambda: other.gate.budget(caller).spent == 110, "the other counts the new part")
        assert again.gate.budget(caller).spent == 110
    finally:
        await again.close()


async def test_a_value_that_is_none_of_ours_keeps_no_budget_from_being_shared(hosts, server):
    one, other = await hosts()
    for number, wrong in enumerate(("900", "", "a b c d", "1 2 3", "-1 nan inf 9")):
        await server.call("HSET", "kvgate:default:budget:tenant:red:tokens:1", f"host {number}", wrong)
    caller = tenant(budget=BudgetSettings(1000, per="total"))
    [grant] = await one.passes(caller, 1, 600)
    grant.settle(600, 0, 0)
    await eventually(lambda: other.gate.budget(caller).spent == 600, "the other knows it")
    assert len(await other.passes(caller, 1, 400)) == 1


async def test_a_host_says_nothing_of_a_name_that_has_a_budget_only_elsewhere(hosts, server):
    one, other = await hosts()
    [grant] = await one.passes(tenant("blue"), 1, 50)
    grant.settle(50, 0, 0)
    await server.call("PUBLISH", "kvgate:default:limit-wanted", "tenant:blue")
    caller = tenant(budget=BudgetSettings(1000, per="total"))
    [grant] = await one.passes(caller, 1, 50)
    grant.settle(50, 0, 0)
    await eventually(lambda: other.gate.budget(caller).spent == 50, "what came later is known")
    assert await server.call("KEYS", "kvgate:default:budget:*") == ["kvgate:default:budget:tenant:red:tokens:1"]
