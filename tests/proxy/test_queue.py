"""Covers: gateway/proxy/serving/queueing.py, gateway/flow/queue.py, gateway/proxy/admin/explain.py.

A model with a queue, on real sockets: more requests than an engine has room for, on simulated engines.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from gateway.config.settings import ModelSettings
from gateway.fleet.settings import EndpointSettings
from gateway.flow.settings import QueueSettings
from tests.support.engines import engines
from tests.support.gateway import config_for, running
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
SLOW: dict[str, Any] = {"step_seconds": 0.05}
"""An answer of some tokens takes a fraction of a second."""
QUEUE = QueueSettings(max_wait=60.0, patience=30.0)


def full(*urls: str) -> tuple[EndpointSettings, ...]:
    """Endpoints whose KV memory is full with one request, however long that takes."""
    return tuple(EndpointSettings(url=url, kv_capacity_tokens=16) for url in urls)


def asked(number: int, tokens: int = 4) -> dict[str, Any]:
    content = f"{number} " + "wait for me " * 40
    return {"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": tokens}


async def test_all_are_answered_and_what_waits_is_seen(tokenizer):
    async with engines(2, tokenizer=tokenizer, **SLOW) as servers:
        config = config_for(endpoints=full(*(server.url for server in servers)), tokenizer=tokenizer, queue=QUEUE)
        async with running(config) as gateway:
            sent = [asyncio.create_task(gateway.client.post(PATH, json=asked(number))) for number in range(12)]
            [queue] = gateway.gateway.reloading.wiring.queues.values()
            await eventually(lambda: queue.held.waiting > 4, "there is no room for all of them")
            reply = await gateway.client.post(f"{gateway.admin_url}/debug/explain", json=asked(99))
            account = reply.json()
            assert account["queue"]["waiting"] > 0
            assert account["queue"]["would_wait_for"]["reason"] in ("kv", "turn")
            assert {room["full_by"] for room in (one["room"] for one in account["endpoints"])} <= {"kv", None}
            shown = (await gateway.client.get(f"{gateway.admin_url}/metrics")).text
            assert 'kvgate_queue_requests{band="0",model="sim"}' in shown
            assert [reply.status_code for reply in await asyncio.gather(*sent)] == [200] * 12
            await eventually(lambda: len(gateway.lines) == 12, "all are settled")
            assert max(line.queue_wait for line in gateway.lines) > 0
            assert queue.held.waiting == 0
            reply = await gateway.client.get(f"{gateway.admin_url}/debug/decisions", params={"limit": 100})
            assert any(one["waited"] > 0 and one["waited_for"] for one in reply.json()["decisions"])


async def test_who_waits_too_long_is_told_so_and_clients_that_leave_make_room(tokenizer):
    async with engines(1, tokenizer=tokenizer, **SLOW) as servers:
        config = config_for(endpoints=full(servers[0].url), tokenizer=tokenizer, queue=QUEUE)
        async with running(config) as gateway:
            [queue] = gateway.gateway.reloading.wiring.queues.values()
            first = asyncio.create_task(gateway.client.post(PATH, json=asked(0, tokens=40)))
            await eventually(lambda: sum(e.load.requests for e in queue.members()) == 1, "it is with the engine")
            leaver = asyncio.create_task(gateway.client.post(PATH, json=asked(1)))
            await eventually(lambda: queue.held.waiting == 1, "there is no room for it")
            hurried = await gateway.client.post(PATH, json=asked(2), headers={"x-request-timeout": "0.01"})
            assert hurried.status_code == 429
            assert hurried.json()["error"]["message"]
            assert int(hurried.headers["retry-after"]) >= 1
            leaver.cancel()
            await eventually(lambda: queue.held.waiting == 0, "its client has left")
            assert (await first).status_code == 200
            assert (await gateway.client.post(PATH, json=asked(3))).status_code == 200
            shown = (await gateway.client.get(f"{gateway.admin_url}/metrics")).text
            assert 'kvgate_queue_held_seconds_count{band="0",model="sim",outcome="left"} 1.0' in shown
            assert "kvgate_shed_total{" in shown


async def test_a_reload_places_those_who_wait_in_the_queue_that_it_replaces(tokenizer):
    async with engines(1, tokenizer=tokenizer, **SLOW) as servers:
        config = config_for(endpoints=full(servers[0].url), tokenizer=tokenizer, queue=QUEUE)
        async with running(config) as gateway:
            [queue] = gateway.gateway.reloading.wiring.queues.values()
            sent = [
                asyncio.create_task(gateway.client.post(PATH, json=asked(number, tokens=20))) for number in range(4)
            ]
            await eventually(lambda: queue.held.waiting == 3, "there is room for one")
            assert (
                await gateway.reload(config_for(endpoints=full(servers[0].url), tokenizer=tokenizer))
            ).status_code == 200
            assert gateway.gateway.reloading.wiring.queues == {}
            assert [reply.status_code for reply in await asyncio.gather(*sent)] == [200] * 4
            assert queue.held.waiting == 0


async def test_a_reload_that_removes_a_model_still_places_those_who_wait_for_it(tokenizer):
    """They began before. They are placed as soon as there is room, and not only when they are planned anew."""
    async with engines(2, tokenizer=tokenizer, **SLOW) as servers:
        config = config_for(endpoints=full(servers[0].url), tokenizer=tokenizer, queue=QUEUE)
        async with running(config) as gateway:
            [queue] = gateway.gateway.reloading.wiring.queues.values()
            before = queue.members()
            sent = [
                asyncio.create_task(gateway.client.post(PATH, json=asked(number, tokens=20))) for number in range(4)
            ]
            await eventually(lambda: queue.held.waiting == 3, "there is room for one")
            other = ModelSettings(name="other", endpoints=(EndpointSettings(url=servers[1].url),), served_name="sim")
            assert (await gateway.reload(replace(config, models=(other,)))).status_code == 200
            assert queue.held.waiting > 0, "some wait still"
            assert queue.members() == before
            assert (await gateway.client.post(PATH, json=asked(9))).status_code == 404
            assert [reply.status_code for reply in await asyncio.gather(*sent)] == [200] * 4
            assert queue.held.waiting == 0
            assert 'model="sim"' not in await gateway.metrics()
