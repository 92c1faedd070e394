"""Covers: gateway/tenants/divider.py, gateway/tenants/gate.py, gateway/proxy/serving/reception.py, gateway/tenancy.py.

Two gateways that divide the limits of a tenant over a real server, on real sockets with simulated engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from gateway.sharing.settings import SharingSettings
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings
from gateway.tenants.settings import TenantSettings, TenantsSettings
from gateway.tenants.shared_rows import Mode
from tests.support.engines import engines
from tests.support.gateway import Running, config_for, running
from tests.support.valkey import needs_valkey, valkey
from tests.support.wait import eventually

pytestmark = needs_valkey

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
LIMIT = 60


async def ask(gateway: Running) -> int:
    return (await gateway.client.post(PATH, json=BODY)).status_code


def divides(gateway: Running, hosts: int) -> bool:
    table = gateway.gateway.rooms.gate.state.table
    return table.mode == Mode.DIVIDED and table.replicas == hosts


async def test_two_gateways_let_through_what_one_would_and_know_what_both_have_spent(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.tenants.waiting.PATIENCE", 5.0)  # however busy the machine is
    limits = LimitSettings(requests_per_minute=LIMIT)
    everyone = TenantsSettings(tenants=(TenantSettings("default", limits=limits, budget=BudgetSettings(10**6)),))
    async with valkey(tmp_path) as server, engines(1) as [engine], contextlib.AsyncExitStack() as cleanup:
        config = config_for(engine.url, tenants=everyone, sharing=SharingSettings(server.settings.url))
        both = [await cleanup.enter_async_context(running(config, seed=seed)) for seed in range(2)]
        await eventually(lambda: all(divides(one, 2) for one in both), "they know each other", within=30)
        began = time.monotonic()
        statuses = await asyncio.gather(*[ask(one) for _ in range(LIMIT) for one in both])
        took = time.monotonic() - began
        passed = statuses.count(200)
        assert set(statuses) == {200, 429}
        assert LIMIT - 2 <= passed <= LIMIT + took * LIMIT / 60 + 1
        assert 'kvgate_limits_mode{mode="divided"} 1.0' in await both[0].metrics()
        for one in both:
            spent = 0.0
            async with asyncio.timeout(30):
                while spent < passed:  # a token each at least
                    spent = (await one.client.get("/v1/usage")).json()["budget"]["spent"]
                    await asyncio.sleep(0.05)
        await server.stop()
        assert {await ask(one) for one in both} <= {200, 429}


@pytest.mark.parametrize("fallback", ["open", "closed"])
async def test_a_gateway_that_starts_without_the_server_goes_on_as_it_is_told(tmp_path, fallback, monkeypatch):
    monkeypatch.setattr("gateway.tenants.divider.GRACE", 0.0)
    everyone = TenantsSettings(tenants=(TenantSettings("default", limits=LimitSettings(concurrent=1000)),))
    async with engines(1) as [engine]:
        sharing = SharingSettings("redis://127.0.0.1:1", fallback=fallback)
        async with running(config_for(engine.url, tenants=everyone, sharing=sharing)) as gateway:
            table = gateway.gateway.rooms.gate.state.table
            await eventually(lambda: table.mode == Mode[fallback.upper()], "it knows that there is none", within=30)
            assert await ask(gateway) == (200 if fallback == "open" else 429)
