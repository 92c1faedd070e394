"""Covers: gateway/tenants/divider.py, gateway/tenants/waiting.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway.core.clock import SystemClock
from gateway.sharing.settings import SharingSettings
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings
from gateway.tenants.limits_table import LimitsTable
from gateway.tenants.places import Limit
from gateway.tenants.shared_rows import Mode
from gateway.tenants.shared_state import SharedState
from tests.support.valkey import ValkeyServer, needs_valkey
from tests.support.wait import eventually, until
from tests.tenants.hosts import Host, tenant

pytestmark = needs_valkey


async def test_all_of_a_limit_is_there_for_one_host(hosts):
    one, _ = await hosts()
    caller = tenant(limits=LimitSettings(requests_per_minute=1000, concurrent=50))
    grants = await one.passes(caller, 200)
    assert len(grants) == 50
    for grant in grants:
        grant.settle(0, 0, 0)
    assert len(await one.passes(caller, 10)) == 10


async def test_what_one_host_uses_another_has_not(hosts):
    one, other = await hosts()
    caller = tenant(limits=LimitSettings(concurrent=40, tokens_in_flight=100_000))
    assert len(await one.passes(caller, 30, 1000)) == 30
    assert len(await other.passes(caller, 30, 1000)) == 10
    assert len(await one.passes(caller, 5)) == 0


@pytest.mark.parametrize("limit", ["concurrent", "requests_per_minute"])
async def test_hosts_together_never_let_through_more_than_the_limit(hosts, limit):
    several = await hosts(3)
    caller = tenant(limits=LimitSettings(**{limit: 100}))
    began = SystemClock().monotonic()
    passed = await asyncio.gather(*[one.passes(caller, 150) for one in several])
    took = SystemClock().monotonic() - began
    most = 100 if limit == "concurrent" else 100 + 100 * took / 60 + 1
    assert 90 <= sum(map(len, passed)) <= most


async def test_who_has_more_than_an_even_share_gives_back_what_it_does_not_use(hosts):
    one, other = await hosts()
    caller = tenant(limits=LimitSettings(concurrent=40))
    grants = await one.passes(caller, 40)
    assert len(grants) == 40
    assert await other.admit(caller) is None
    for grant in grants[:15]:
        grant.settle(0, 0, 0)

    async def passes() -> bool:
        return await other.admit(caller) is not None

    for _ in range(15):
        await until(passes, "it has what the first one has given back")
    assert await other.admit(caller) is None
    assert await one.admit(caller) is None


async def test_tokens_that_were_not_needed_are_there_for_the_other_host(hosts):
    one, other = await hosts()
    caller = tenant(limits=LimitSettings(tokens_per_minute=6000))
    [grant] = await one.passes(caller, 1, 6000)
    assert await other.passes(caller, 1, 3000) == []
    grant.settle(100, 0, 0)

    async def passes() -> bool:
        return bool(await other.passes(caller, 1, 3000))

    await until(passes, "the other has it")


async def test_a_host_that_is_killed_gives_back_its_part(hosts, monkeypatch):
    monkeypatch.setattr("gateway.tenants.divider.LEASE", 1.0)
    one, other = await hosts()
    caller = tenant(limits=LimitSettings(concurrent=10))
    assert len(await one.passes(caller, 10)) == 10
    assert await other.admit(caller) is None
    await one.divider.close()

    async def passes() -> bool:
        return len(await other.passes(caller, 1)) == 1

    for _ in range(10):
        await until(passes, "its part is free")
    assert await other.admit(caller) is None


@pytest.mark.parametrize(("fallback", "pass_each"), [("share", 20), ("open", 100), ("closed", 0)])
async def test_while_the_server_is_away_the_fallback_counts(hosts, server, fallback, pass_each, caplog, monkeypatch):
    one, other = await hosts(fallback=fallback)
    monkeypatch.setattr("gateway.tenants.divider.GRACE", 0.0)
    caller = tenant(limits=LimitSettings(concurrent=40), budget=BudgetSettings(10_000, per="total"))
    first = await one.passes(caller, 5)
    assert len(first) == 5
    await server.stop()
    mode = Mode[fallback.upper()]
    await eventually(lambda: one.mode == other.mode == mode, "both know that it is away")
    assert caplog.text.count("limits are not divided") == 2
    assert one.divider.modes()[fallback,] == 1.0
    more = await one.passes(caller, 100)
    assert len(more) == (pass_each - len(first) if fallback == "share" else pass_each)
    assert len(await other.passes(caller, 100)) == pass_each
    for grant in (*first, *more):
        grant.settle(0, 0, 0)
    await server.start()
    await eventually(lambda: one.mode == other.mode == Mode.DIVIDED, "it is back")
    assert one.divider.modes()["divided",] == 1.0


@contextlib.asynccontextmanager
async def two_workers(server: ValkeyServer) -> AsyncIterator[tuple[Host, Host]]:
    """Of one more host: the one that leads, and divides, and the other."""
    table = LimitsTable.create(2)
    settings = SharingSettings(server.settings.url)
    workers: list[Host] = []
    try:
        for number in range(2):
            workers.append(Host(settings, SharedState(LimitsTable.join(table.fd, number), SystemClock(), divided=True)))
            await eventually(lambda: workers[0].mode == Mode.DIVIDED, "the first one divides")
        yield workers[0], workers[1]
    finally:
        await asyncio.gather(*[worker.close() for worker in workers])
        table.close()


async def test_one_worker_of_a_host_divides_for_all_of_them_and_another_one_when_it_has_ended(
    server, hosts, monkeypatch, caplog
):
    [other] = await hosts(1)
    monkeypatch.setattr("gateway.tenants.divider.GRACE", 30.0)
    async with two_workers(server) as (lead, second):
        assert (lead.divider.link.up, second.divider.link.up) == (True, False)
        caller = tenant(limits=LimitSettings(concurrent=40))
        assert len(await second.passes(caller, 25)) == 25
        assert len(await other.passes(caller, 40)) == 15
        assert await lead.admit(caller) is None
        second.divider._down_at -= 60.0  # it has followed for a minute
        await lead.close()
        await eventually(lambda: second.divider.link.up, "the second one leads", within=30)
        assert "limits are not divided" not in caplog.text, "parts stay while it connects"
        blue = tenant("blue", limits=LimitSettings(concurrent=40))
        assert len(await second.passes(blue, 50)) == 40


async def test_while_the_worker_that_leads_stands_still_the_fallback_counts(server, hosts, monkeypatch, caplog):
    [other] = await hosts(1)
    monkeypatch.setattr("gateway.tenants.divider.STILL", 0.3)
    async with two_workers(server) as (lead, second):
        await eventually(lambda: second.divider.replicas == 2, "it knows the other host", within=30)
        await lead.divider._tasks.close()  # its process holds what the one that leads holds, and does nothing
        await eventually(lambda: second.mode == Mode.SHARE, "its siblings notice it", within=30)
        assert "the worker that leads has said nothing" in caplog.text
        caller = tenant(limits=LimitSettings(concurrent=40), budget=BudgetSettings(1000, per="total"))
        assert len(await second.passes(caller, 50)) == 20
        lead.divider.start()
        await eventually(lambda: second.mode == Mode.DIVIDED, "it goes on", within=30)
        assert other.mode == Mode.DIVIDED


async def test_whatever_fails_limits_are_divided_again(hosts, monkeypatch, caplog):
    [one] = await hosts(1)
    with monkeypatch.context() as patched:
        patched.setattr("gateway.tenants.divider.told", lambda answer: 1 / 0)
        patched.setattr("gateway.tenants.waiting.PATIENCE", 0.01)
        assert len(await one.passes(tenant(limits=LimitSettings(concurrent=4)), 1)) == 1
        await eventually(lambda: "ZeroDivisionError" in caplog.text, "it is logged")
    caller = tenant("blue", limits=LimitSettings(concurrent=40))
    assert len(await one.passes(caller, 50)) == 40


async def test_a_server_that_was_flushed_is_told_anew(hosts, server):
    one, other = await hosts()
    caller = tenant(limits=LimitSettings(concurrent=40), budget=BudgetSettings(1000, per="total"))
    grants = await one.passes(caller, 30, 10)
    await server.call("FLUSHALL")
    assert len(await other.passes(caller, 40)) <= 40
    grants[0].settle(100, 0, 0)
    await eventually(lambda: other.gate.budget(caller).spent == 100, "the budget's sum is there again")
    await eventually(
        lambda: other.gate.meters(caller)[0][1].place.elsewhere(Limit.CONCURRENT) >= 29, "and what the first one uses"
    )


async def test_a_paused_server_holds_no_request_for_long(hosts, server, monkeypatch):
    one, _ = await hosts()
    monkeypatch.setattr("gateway.tenants.waiting.PATIENCE", 0.01)
    caller = tenant(limits=LimitSettings(concurrent=40))
    await one.passes(caller, 1)
    server.pause()
    try:
        async with asyncio.timeout(30):
            assert len(await one.passes(caller, 100)) >= 4
    finally:
        server.go_on()
