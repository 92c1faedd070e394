"""Covers: gateway/tenants/gate.py, gateway/tenants/usage.py, gateway/proxy/serving/timeline.py, gateway/app.py.

Tenants' limits, budgets and usage, on real sockets with simulated engines.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.core.clock import ManualClock
from gateway.fleet.settings import EndpointSettings
from gateway.flow.settings import QueueSettings
from gateway.tenants.directory import digest
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings, PriceSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsSettings
from tests.support.chat import COMPLETE
from tests.support.engines import engines
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import answer

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


async def at_once(gateway: Running, count: int) -> list[tuple[int, httpx.Headers, Any]]:
    """Status, headers and body of each answer to ``count`` clients, all of which are connected before one asks."""
    port = int(gateway.url.rpartition(":")[2])
    body = orjson.dumps(SHORT)
    request = b"POST %s HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s" % (
        *(PATH.encode(), KEY.encode(), len(body), body),
    )
    clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    while len(clients) < count:  # so many connections may wait to be accepted
        clients += await asyncio.gather(*[asyncio.open_connection("127.0.0.1", port) for _ in range(100)])

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, httpx.Headers, Any]:
        writer.write(request)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = httpx.Headers([line.split(": ", 1) for line in lines if line])
        said = orjson.loads(await reader.readexactly(int(headers["content-length"])))
        writer.close()
        return int(status.split()[1]), headers, said

    return await asyncio.gather(*[ask(*client) for client in clients])


async def test_of_a_thousand_at_once_exactly_as_many_pass_as_the_limit_allows(tokenizer):
    async with engines(2, tokenizer=tokenizer, answer_tokens=2) as servers:
        red = tenants(limits=LimitSettings(requests_per_minute=100))
        async with running(config_for(*(s.url for s in servers), tokenizer=tokenizer, tenants=red)) as gateway:
            # A minute gives another one each 0.6 s: for the limits time stands still, however busy the machine is.
            gateway.gateway.rooms.gate.clock = ManualClock(5.0, epoch=1e9)
            replies = await at_once(gateway, 1000)
            passed = [headers for status, headers, _ in replies if status == 200]
            refused = [(headers, body) for status, headers, body in replies if status == 429]
            assert (len(passed), len(refused)) == (100, 900)
            headers, body = refused[0]
            assert (body["error"]["type"], body["error"]["code"]) == ("requests", "rate_limit_exceeded")
            assert headers["x-kvgate-reason"] == "requests"
            assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "600")
            assert headers["x-ratelimit-remaining-requests"] == "0"
            assert {one["x-ratelimit-limit-requests"] for one in passed} == {"100"}
            assert KEY not in str(replies)
            await settled(gateway, 1000)
            assert gateway.idle()
            assert 'kvgate_limit_refused_total{limit="requests",tenant="red"} 900.0' in await gateway.metrics()


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


async def test_of_many_at_once_a_budget_lets_through_what_it_can_pay_and_one_more(tokenizer):
    """What is expected of each is what it takes: then the overspent part is less than one request."""
    async with engines(1, tokenizer=tokenizer, step_seconds=0.01) as servers:
        red = tenants(budget=BudgetSettings(amount=500.0, unit="tokens", per="day"))
        async with running(config_for(servers[0].url, tokenizer=tokenizer, tenants=red)) as gateway:
            ask = [gateway.client.post(PATH, json=SHORT, headers=AS_RED) for _ in range(100)]
            replies = await asyncio.gather(*ask)
            [each] = {reply.json()["usage"]["total_tokens"] for reply in replies if reply.status_code == 200}
            assert {reply.status_code for reply in replies} == {200, 429}
            await settled(gateway, 100)
            budget = (await usage(gateway))["budget"]
            assert 500 <= budget["spent"] < 500 + each
            assert budget["in_flight"] == 0


async def test_stock_clients_understand_what_is_refused(tokenizer):
    import anthropic  # both import for as long as hundreds of files of tests
    import openai

    async with engines(1, tokenizer=tokenizer) as servers:
        red = tenants(
            limits=LimitSettings(requests_per_minute=2), budget=BudgetSettings(amount=1.0, unit="tokens", per="total")
        )
        async with running(config_for(servers[0].url, tokenizer=tokenizer, tenants=red)) as gateway:
            ask: dict[str, Any] = {**SHORT, "model": "sim"}
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=2) as client:
                await client.chat.completions.create(**ask)
                with pytest.raises(openai.RateLimitError) as spent:
                    await client.chat.completions.create(**ask)
            assert (spent.value.code, spent.value.type) == ("insufficient_quota", "insufficient_quota")
            assert len(gateway.lines) == 2, "it is not tried again"
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                gateway.gateway.rooms.gate.account("tenant:red").today.prompt = 0  # as in a new period
                gateway.gateway.rooms.gate.account("tenant:red").today.output = 0
                await client.chat.completions.create(**ask)
                with pytest.raises(openai.RateLimitError) as limited:
                    await client.chat.completions.create(**ask)
            assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "requests")
            async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as claude:
                with pytest.raises(anthropic.RateLimitError) as refused:
                    await claude.messages.create(**ask)
            assert refused.value.body["error"]["type"] == "rate_limit_error"
            headers = refused.value.response.headers
            assert headers["anthropic-ratelimit-requests-remaining"] == "0"
            assert not any(name.startswith("x-ratelimit") for name in headers)


async def test_without_tenants_there_is_no_gate_and_nothing_is_said_of_limits(tokenizer):
    async with engines(1, tokenizer=tokenizer) as servers:
        async with running(config_for(servers[0].url, tokenizer=tokenizer)) as gateway:
            reply = await gateway.client.post(PATH, json=SHORT)
            assert not [name for name in reply.headers if "ratelimit" in name]
            await settled(gateway, 1)
            [line] = gateway.lines
            assert (line.tenant, line.key, line.charge) == ("", "", None)


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
                await eventually(lambda: any(gateway.gateway.fleet.in_flight().values()), "it is with the engine")
                refused = await gateway.client.post(PATH, json=SHORT, headers=AS_RED)
                assert refused.headers["x-kvgate-reason"] == "concurrent"
                task.cancel()
            await eventually(gateway.idle, "all is given back")
            assert (await gateway.client.post(PATH, json=SHORT, headers=AS_RED)).status_code == 200
            found = await usage(gateway)
            assert {name: value for one in found["limits"] for name, value in one.items()}["concurrent"][
                "remaining"
            ] == 1


async def test_as_many_of_a_tenant_wait_as_its_limit_allows():
    release = asyncio.Event()

    async def held_back(connection, head, body):
        await release.wait()
        await connection.say(answer(COMPLETE))

    async with ScriptedEngine(held_back) as server:
        red = tenants(limits=LimitSettings(queued=1))
        # Its KV is full with one request, however long that takes.
        full = (EndpointSettings(url=server.url, kv_capacity_tokens=16),)
        queue = QueueSettings(max_wait=60.0, patience=30.0)
        async with running(config_for(endpoints=full, tenants=red, queue=queue)) as gateway:
            [held] = gateway.gateway.reloading.wiring.queues.values()
            sent = [asyncio.create_task(gateway.client.post(PATH, json=SHORT, headers=AS_RED))]
            await eventually(lambda: server.posts == 1, "it is with the engine")
            sent.append(asyncio.create_task(gateway.client.post(PATH, json=SHORT, headers=AS_RED)))
            await eventually(lambda: held.held.waiting == 1, "it waits")
            third = await gateway.client.post(PATH, json=SHORT, headers=AS_RED)
            assert (third.status_code, third.headers["x-kvgate-reason"]) == (429, "requests")
            assert 'kvgate_limit_refused_total{limit="queued",tenant="red"} 1.0' in await gateway.metrics()
            release.set()
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
