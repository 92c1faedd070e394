"""Covers: gateway/tenants/gate.py, gateway/proxy/serving/timeline.py, gateway/proxy/serving/reception.py.

What a request holds of its tenant's limits is given back once, and what it used is charged once, however it ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.core.prompt import estimate
from gateway.fleet.settings import EndpointSettings
from gateway.flow.settings import FlowSettings, QueueSettings
from gateway.proxy.settings import RetrySettings
from gateway.tenants.directory import digest
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsSettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, TELLING, WORD
from tests.support.gateway import Running, config_for, running
from tests.support.leaving import Client, Held
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, answer, chunked

KEY = "kvg-of-red"
AS_RED = {"Authorization": f"Bearer {KEY}"}
PATH = "/v1/chat/completions"

RED = TenantSettings(
    "red",
    limits=LimitSettings(concurrent=2, tokens_per_minute=100_000, tokens_in_flight=50_000, queued=5),
    budget=BudgetSettings(1e6, per="total"),
)
TENANTS = TenantsSettings(tenants=(RED,), keys=(TenantKeySettings("ci", digest(KEY).hex(), "red"),))


def meter(gateway: Running) -> Any:
    gate, caller = gateway.gateway.rooms.gate, gateway.gateway.rooms.sources.directory.roster.callers["red"]
    [(_, found)] = gate.meters(caller)
    return found


def charged(gateway: Running) -> tuple[int, int, int, int]:
    """Requests, prompt tokens, cached ones, output tokens."""
    used = gateway.gateway.rooms.gate.account("key:ci").used("total")
    return used.requests, used.prompt, used.cached, used.output


async def given_back(gateway: Running) -> None:
    """Nothing is held for a request any more, and of the bucket no more is taken than what was charged."""
    await eventually(gateway.idle, "every permit and reservation is given back")
    found, gate = meter(gateway), gateway.gateway.rooms.gate
    await eventually(lambda: found.place.concurrent.value == 0, "it is not concurrent any more")
    assert (found.place.tokens_in_flight.value, found.place.queued.value) == (0, 0)
    caller = gateway.gateway.rooms.sources.directory.roster.callers["red"]
    assert gate.budget(caller).in_flight == 0
    _, prompt, _, output = charged(gateway)
    assert gate.budget(caller).spent == prompt + output
    assert found.tokens.used(gate.clock.monotonic()) <= prompt + output


def holding(gateway: Running, count: int = 1) -> bool:
    return bool(meter(gateway).place.concurrent.value == count)


async def test_one_that_leaves_the_queue_of_admission():
    held = Held()
    config = {"limits": FlowSettings(max_in_flight=1, max_queue=5, queue_timeout=60), "tenants": TENANTS}
    async with ScriptedEngine(held) as server, running(config_for(server.url, **config)) as gateway:
        async with Client(gateway, CHAT, key=KEY), Client(gateway, CHAT, key=KEY) as second:
            await eventually(lambda: holding(gateway, 2), "both have begun")
            second.leave("close")
            await eventually(lambda: holding(gateway), "one has left")
        await given_back(gateway)
        assert charged(gateway)[0] == 2


async def test_one_that_leaves_while_it_is_tokenized():
    async with ScriptedEngine() as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        started, release = asyncio.Event(), asyncio.Event()

        async def slow(prompt, **others):
            started.set()
            await release.wait()
            return estimate(b"x", "slow")

        gateway.gateway.directory.runtimes[0].tokens.tokenize = slow
        async with Client(gateway, CHAT, key=KEY) as client:
            await started.wait()
            assert holding(gateway)
            client.leave("reset")
            await given_back(gateway)
        assert charged(gateway) == (1, 0, 0, 0)


async def test_one_that_leaves_the_queue_of_its_model():
    held = Held()
    config: dict[str, Any] = {"queue": QueueSettings(max_wait=60.0, patience=30.0), "tenants": TENANTS}
    async with ScriptedEngine(held) as server:
        # Its KV is full with one request, however long that takes.
        config["endpoints"] = (EndpointSettings(url=server.url, kv_capacity_tokens=64),)
        async with running(config_for(**config)) as gateway:
            await leaves_the_queue(gateway, held)


async def leaves_the_queue(gateway: Running, held: Held) -> None:
    [queue] = gateway.gateway.reloading.wiring.queues.values()
    async with Client(gateway, CHAT, key=KEY):
        await eventually(lambda: held.asked, "the first is with the engine")
        async with Client(gateway, CHAT, key=KEY) as second:
            await eventually(lambda: queue.held.waiting == 1, "the second waits")
            assert (meter(gateway).place.queued.value, meter(gateway).place.concurrent.value) == (1, 2)
            second.leave("close")
            await eventually(lambda: holding(gateway), "the second has left")
            assert meter(gateway).place.queued.value == 0
    await given_back(gateway)
    requests, prompt, _, output = charged(gateway)
    assert (requests, output) == (2, 0)
    assert prompt == gateway.lines[-1].prompt_tokens, "only the first was sent to an engine"


async def test_one_that_leaves_before_the_answer_pays_for_its_prompt():
    held = Held()
    async with ScriptedEngine(held) as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        async with Client(gateway, CHAT, key=KEY) as client:
            await eventually(lambda: held.asked, "the engine is asked")
            assert meter(gateway).place.tokens_in_flight.value > 0
            client.leave("reset")
            await given_back(gateway)
        assert charged(gateway) == (1, gateway.lines[-1].prompt_tokens, 0, 0)


async def test_one_that_leaves_a_stream_pays_for_what_came_until_then():
    held = Held(STREAM_HEAD, *(chunked(part, end=False) for part in (ROLE, *[WORD] * 21, b"data:")))
    async with ScriptedEngine(held) as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        async with Client(gateway, TELLING, key=KEY) as client:
            await eventually(lambda: held.asked, "the engine is asked")
            await client.reader.readuntil(b"data:\r\n")
            client.leave("close")
            await given_back(gateway)
        assert charged(gateway) == (1, gateway.lines[-1].prompt_tokens, 0, 21)


async def test_a_stream_that_breaks_off_is_charged_as_far_as_it_came():
    async def breaks(connection, head, body):
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, WORD, end=False))
        connection.reset()

    async with ScriptedEngine(breaks) as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        reply = await gateway.client.post(PATH, json=STREAMED, headers=AS_RED)
        assert "error" in reply.text
        await given_back(gateway)
        [line] = gateway.lines
        assert line.outcome == "broken"
        assert charged(gateway) == (1, line.prompt_tokens, 0, line.output_tokens)


@pytest.mark.parametrize("stream", [False, True])
async def test_where_an_engine_reports_no_usage_our_own_count_is_charged(stream):
    silent = orjson.dumps({k: v for k, v in orjson.loads(COMPLETE).items() if k != "usage"})

    async def without(connection, head, body):
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, WORD, WORD, DONE) if stream else answer(silent))

    async with ScriptedEngine(without) as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        assert (await gateway.client.post(PATH, json=STREAMED if stream else CHAT, headers=AS_RED)).status_code == 200
        await given_back(gateway)
        assert charged(gateway) == (1, gateway.lines[-1].prompt_tokens, 0, 3 if stream else 0)


async def test_what_an_engine_reports_is_charged_the_cached_part_included():
    told = orjson.loads(COMPLETE) | {
        "usage": {"prompt_tokens": 40, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 16}}
    }

    async def tells(connection, head, body):
        await connection.say(answer(orjson.dumps(told)))

    async with ScriptedEngine(tells) as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        await gateway.client.post(PATH, json=CHAT, headers=AS_RED)
        await given_back(gateway)
        assert charged(gateway) == (1, 40, 16, 9)
        assert meter(gateway).tokens.used(gateway.gateway.rooms.gate.clock.monotonic()) <= 49
        shown = await gateway.metrics()
        for kind, count in (("input", 24), ("cached", 16), ("output", 9)):
            assert f'kvgate_tenant_tokens_total{{kind="{kind}",tenant="red"}} {count}.0' in shown


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Internal Server Error", "503 Service Unavailable"])
async def test_an_engines_error_costs_nothing_and_has_the_headers_of_limits(status):
    async def refuses(connection, head, body):
        await connection.say(answer(b'{"error": {"message": "no"}}', status=status))

    once = RetrySettings(attempts=1)
    async with ScriptedEngine(refuses) as server:
        async with running(config_for(server.url, tenants=TENANTS, retries=once)) as gateway:
            reply = await gateway.client.post(PATH, json=CHAT, headers=AS_RED)
            assert reply.status_code == int(status[:3])
            assert reply.headers["x-ratelimit-remaining-tokens"] == "100000"
            await given_back(gateway)
            assert charged(gateway) == (1, 0, 0, 0)


async def test_an_engine_that_dies_before_it_answers_costs_nothing():
    async def dies(connection, head, body):
        connection.reset()

    async with ScriptedEngine(dies) as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        reply = await gateway.client.post(PATH, json=CHAT, headers=AS_RED)
        assert reply.status_code >= 500
        assert reply.headers["x-ratelimit-remaining-tokens"] == "100000"
        await given_back(gateway)
        assert charged(gateway) == (1, 0, 0, 0)


async def test_a_request_that_only_counts_tokens_is_charged_none():
    async def counts(connection, head, body):
        await connection.say(answer(b'{"count": 3, "tokens": [1, 2, 3]}'))

    async with ScriptedEngine(counts) as server, running(config_for(server.url, tenants=TENANTS)) as gateway:
        reply = await gateway.client.post("/tokenize", json={"model": "sim", "prompt": "Hello"}, headers=AS_RED)
        assert reply.status_code == 200
        await given_back(gateway)
        assert charged(gateway) == (1, 0, 0, 0)


async def test_who_has_read_the_last_byte_may_send_the_next_one_at_once():
    """A client with one request at a time is never told that it has two."""
    one = TenantsSettings((TenantSettings("red", limits=LimitSettings(concurrent=1)),), TENANTS.keys)
    async with ScriptedEngine() as server, running(config_for(server.url, tenants=one)) as gateway:
        for number in range(60):
            body = STREAMED if number % 2 else CHAT
            assert (await gateway.client.post(PATH, json=body, headers=AS_RED)).status_code == 200
        await eventually(lambda: holding(gateway, 0), "nothing is held")


async def test_many_that_leave_at_random_moments_leave_nothing_behind():
    async def slow(connection, head, body):
        if orjson.loads(body).get("stream"):
            await connection.say(STREAM_HEAD)
            for _ in range(5):
                await connection.say(chunked(WORD, end=False))
                await asyncio.sleep(0.002)
            await connection.say(chunked())
        else:
            await asyncio.sleep(0.005)
            await connection.say(answer(COMPLETE))

    many = TenantsSettings(
        (TenantSettings("red", limits=LimitSettings(concurrent=20, tokens_per_minute=10**9), budget=RED.budget),),
        TENANTS.keys,
    )
    limits = FlowSettings(max_in_flight=8, max_queue=100, queue_timeout=60)
    async with ScriptedEngine(slow) as server:
        async with running(config_for(server.url, limits=limits, tenants=many)) as gateway:

            async def come_and_go(number: int) -> None:
                async with Client(gateway, STREAMED if number % 2 else CHAT, key=KEY) as client:
                    await asyncio.sleep(number % 20 / 1000)
                    client.leave("reset" if number % 3 else "close")

            await asyncio.gather(*[come_and_go(number) for number in range(120)])
            await eventually(lambda: gateway.gateway.doors.server.in_progress == 0, "all have ended")
            await given_back(gateway)
