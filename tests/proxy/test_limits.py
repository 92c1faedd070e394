"""Covers: gateway/tenants/gate.py, gateway/tenants/usage.py, gateway/proxy/serving/timeline.py, gateway/app.py.

Tenants' limits, budgets and usage, on real sockets with simulated engines.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.flow.settings import QueueSettings
from gateway.tenants.directory import digest
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings, PriceSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsSettings
from tests.support.engines import engines
from tests.support.gateway import Running, config_for, running
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
KEY = "kvg-of-red"
AS_RED = {"Authorization": f"Bearer {KEY}"}
SHORT: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def tenants(**of_red: Any) -> TenantsSettings:
    """One tenant, red, with one key."""
    key = TenantKeySettings(id="red-ci", sha256=digest(KEY).hex(), tenant="red")
    return TenantsSettings(tenants=(TenantSettings(name="red", **of_red),), keys=(key,))


async def usage(gateway: Running) -> dict[str, Any]:
    reply = await gateway.client.get("/v1/usage", headers=AS_RED)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def settled(gateway: Running, count: int) -> None:
    await eventually(lambda: len(gateway.lines) == count, "all requests have ended")


async def test_of_a_thousand_at_once_exactly_as_many_pass_as_the_limit_allows(tokenizer):
    async with engines(2, tokenizer=tokenizer, answer_tokens=2) as servers:
        red = tenants(limits=LimitSettings(requests_per_minute=100))
        async with running(config_for(*(s.url for s in servers), tokenizer=tokenizer, tenants=red)) as gateway:
            limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, limits=limits, headers=AS_RED) as client:
                for _ in range(10):  # connections, of which so many are accepted at once
                    await asyncio.gather(*[client.get("/health") for _ in range(100)])
                # A minute gives another one each 0.6 s: all are sent within that, and what has come is counted at once.
                began = asyncio.get_running_loop().time()
                replies = await asyncio.gather(*[client.post(PATH, json=SHORT) for _ in range(1000)])
                took = asyncio.get_running_loop().time() - began
            passed = [reply for reply in replies if reply.status_code == 200]
            refused = [reply for reply in replies if reply.status_code == 429]
            assert len(passed) + len(refused) == 1000
            assert 100 <= len(passed) <= 100 + int(took / 0.6)
            error = refused[0].json()["error"]
            assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
            assert refused[0].headers["x-kvgate-reason"] == "requests"
            assert int(refused[0].headers["retry-after"]) >= 1
            assert refused[0].headers["x-ratelimit-remaining-requests"] == "0"
            assert passed[0].headers["x-ratelimit-limit-requests"] == "100"
            assert KEY not in "".join(map(str, (reply.headers for reply in replies)))
            await settled(gateway, 1000)
            assert gateway.idle()


async def test_a_key_is_told_of_itself_and_of_nobody_else(tokenizer):
    async with engines(1, tokenizer=tokenizer) as servers:
        red = tenants(limits=LimitSettings(tokens_per_minute=10_000, concurrent=3))
        async with running(config_for(servers[0].url, tokenizer=tokenizer, tenants=red)) as gateway:
            assert (await gateway.client.get("/v1/usage")).status_code == 401
            reply = await gateway.client.post(PATH, json=SHORT, headers=AS_RED)
            used = reply.json()["usage"]
            await settled(gateway, 1)
            found = await usage(gateway)
            assert (found["tenant"], found["key"]) == ("red", "red-ci")
            tokens = found["usage"]["day"]["tokens"]
            assert tokens["input"] + tokens["cached"] == used["prompt_tokens"]
            assert tokens["output"] == used["completion_tokens"]
            limits = {name: value for one in found["limits"] for name, value in one.items()}
            assert limits["concurrent"] == {"limit": 3, "remaining": 3}
            assert limits["tokens_per_minute"]["remaining"] <= 10_000 - used["total_tokens"] + 200
            [line] = gateway.lines
            assert (line.tenant, line.key) == ("red", "red-ci")
            shown = await gateway.metrics()
            assert 'kvgate_tenant_tokens_total{kind="output",tenant="red"} 4.0' in shown
            assert KEY not in shown


async def test_a_budget_is_overspent_by_no_more_than_what_was_in_flight(tokenizer):
    async with engines(1, tokenizer=tokenizer) as servers:
        red = tenants(budget=BudgetSettings(amount=100.0, unit="tokens", per="day"))
        async with running(config_for(servers[0].url, tokenizer=tokenizer, tenants=red)) as gateway:
            statuses = []
            for _ in range(20):
                reply = await gateway.client.post(PATH, json=SHORT, headers=AS_RED)
                statuses.append(reply.status_code)
                if reply.status_code == 200:
                    each = reply.json()["usage"]["total_tokens"]
            assert set(statuses) == {200, 429}
            assert statuses == sorted(statuses), "once it is spent, nothing passes"
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
            assert reply.headers["x-should-retry"] == "false"
            await settled(gateway, 20)
            budget = (await usage(gateway))["budget"]
            assert budget["in_flight"] == 0
            assert 100 <= budget["spent"] < 100 + each
            assert 'kvgate_budget_spent_ratio{tenant="red"}' in await gateway.metrics()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_gives_its_concurrency_back_and_pays_what_it_got(tokenizer, stream: bool):
    async with engines(1, tokenizer=tokenizer, step_seconds=0.02, answer_tokens=400) as servers:
        red = tenants(limits=LimitSettings(concurrent=1))
        async with running(config_for(servers[0].url, tokenizer=tokenizer, tenants=red)) as gateway:
            body = {**SHORT, "max_tokens": 400, "stream": stream}
            if stream:
                async with gateway.client.stream("POST", PATH, json=body, headers=AS_RED) as reply:
                    async for _ in reply.aiter_lines():
                        break
            else:
                task = asyncio.create_task(gateway.client.post(PATH, json=body, headers=AS_RED))
                await eventually(
                    lambda: (
                        servers[0].service.asked > 0
                        if hasattr(servers[0].service, "asked")
                        else any(endpoint.load.requests for endpoint in gateway.gateway.fleet.all_endpoints)
                    ),
                    "it is with the engine",
                )
                refused = await gateway.client.post(PATH, json=SHORT, headers=AS_RED)
                assert refused.headers["x-kvgate-reason"] == "concurrent"
                task.cancel()
            await eventually(gateway.idle, "all is given back")
            assert (await gateway.client.post(PATH, json=SHORT, headers=AS_RED)).status_code == 200
            found = await usage(gateway)
            assert {name: value for one in found["limits"] for name, value in one.items()}["concurrent"][
                "remaining"
            ] == 1


async def test_as_many_of_a_tenant_wait_as_its_limit_allows(tokenizer):
    slow = {"prefill_token_seconds": 5e-3}
    async with engines(1, tokenizer=tokenizer, **slow) as servers:
        red = tenants(limits=LimitSettings(queued=1))
        queue = QueueSettings(window=1e-6, max_wait=60.0, patience=30.0)
        config = config_for(servers[0].url, tokenizer=tokenizer, tenants=red, queue=queue)
        async with running(config) as gateway:
            [held] = gateway.gateway.reloading.wiring.queues.values()
            body = {**SHORT, "messages": [{"role": "user", "content": "wait " * 60}]}
            sent = [asyncio.create_task(gateway.client.post(PATH, json=body, headers=AS_RED))]
            await eventually(lambda: any(e.load.requests for e in held.members()), "it is with the engine")
            sent.append(asyncio.create_task(gateway.client.post(PATH, json=body, headers=AS_RED)))
            await eventually(lambda: held.held.waiting == 1, "it waits")
            third = await gateway.client.post(PATH, json=body, headers=AS_RED)
            assert (third.status_code, third.headers["x-kvgate-reason"]) == (429, "requests")
            assert 'kvgate_limit_refused_total{limit="queued",tenant="red"} 1.0' in await gateway.metrics()
            assert [reply.status_code for reply in await asyncio.gather(*sent)] == [200, 200]
            await eventually(gateway.idle, "nothing is left")


async def test_what_was_used_outlives_the_process_in_a_file(tokenizer, tmp_path: Path):
    red = tenants(budget=BudgetSettings(amount=1e6, unit="money", per="month"))
    prices = {"sim": PriceSettings(input=1.0, cached=0.5, output=2.0)}
    async with engines(1, tokenizer=tokenizer) as servers:
        settings = TenantsSettings(red.tenants, red.keys, prices, state=str(tmp_path / "state.json"))
        config = config_for(servers[0].url, tokenizer=tokenizer, tenants=settings)
        async with running(config) as gateway:
            assert (await gateway.client.post(PATH, json=SHORT, headers=AS_RED)).status_code == 200
            await settled(gateway, 1)
            before = await usage(gateway)
            assert before["budget"]["spent"] > 0
        async with running(config) as gateway:
            after = await usage(gateway)
            assert after["usage"] == before["usage"]
            assert after["budget"]["spent"] == before["budget"]["spent"]
