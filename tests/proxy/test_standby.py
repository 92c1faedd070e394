"""Covers: gateway/flow/standby.py, gateway/proxy/serving/director.py, gateway/proxy/serving/model_directory.py.

A model whose engines have yet to come, or have gone, on real sockets: its requests wait for the first one.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gateway.flow.settings import FlowSettings, QueueSettings
from gateway.proxy.settings import ListenSettings
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.engines import simulated
from tests.support.gateway import Running, config_for, running
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
PATIENT = FlowSettings(no_endpoint_timeout=300.0, max_queue=8)


def asked(number: int) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": f"request {number}"}], "max_tokens": 2}


def order(engine: EngineServer) -> list[int]:
    """The numbers of the requests that it has got, in order."""
    bodies = [json.loads(one.body) for one in engine.received if one.path == PATH]
    return [int(body["messages"][0]["content"].split()[1]) for body in bodies]


async def ask(gateway: Running, *numbers: int, before: int = 0, **options: Any) -> list[asyncio.Task]:
    """Requests that stand by, in this order. ``before``: so many do already."""
    standby, tasks = gateway.gateway.directory.runtimes[0].standby, list[asyncio.Task]()

    def stand(count: int) -> bool:
        return standby.waiting == count

    for number in numbers:
        tasks.append(asyncio.create_task(gateway.client.post(PATH, json=asked(number), **options)))
        await eventually(partial(stand, before + len(tasks)), "it stands by", within=30)
    return tasks


@pytest.mark.parametrize("queue", [None, QueueSettings()], ids=["no queue", "queue"])
async def test_the_first_engine_serves_all_who_wait_in_order(queue):
    port = free_in_a_row()
    async with running(config_for(f"http://127.0.0.1:{port}", limits=PATIENT, queue=queue)) as gateway:
        assert (await gateway.client.get("/readyz")).status_code == 200, "requests may come"
        sent = await ask(gateway, *range(5))
        assert 'kvgate_standing_by_requests{model="sim"} 5.0' in await gateway.metrics()
        sent.pop(2).cancel()
        standby = gateway.gateway.directory.runtimes[0].standby
        await eventually(lambda: standby.waiting == 4, "its client has left", within=30)
        hurried = await gateway.client.post(PATH, json=asked(9), headers={"x-request-timeout": "0.01"})
        assert hurried.status_code == 503
        assert "refused 1" in hurried.json()["error"]["message"]
        assert int(hurried.headers["retry-after"]) >= 1
        async with simulated(where={"port": port}) as engine:
            assert [reply.status_code for reply in await asyncio.gather(*sent)] == [200] * 4
            assert order(engine) == [0, 1, 3, 4]
            await eventually(gateway.idle, within=30)
        await eventually(lambda: len(gateway.lines) == 6, within=30)
        served = [line for line in gateway.lines if line.outcome == "ok"]
        assert [line.attempts for line in served] == [1] * 4
        assert all(line.queue_wait > 0 for line in served)
        assert 'kvgate_standing_by_requests{model="sim"} 0.0' in await gateway.metrics()


async def test_no_more_than_max_queue_wait():
    limits = replace(PATIENT, max_queue=1)
    async with running(config_for(f"http://127.0.0.1:{free_in_a_row()}", limits=limits)) as gateway:
        [first] = await ask(gateway, 0)
        assert (await gateway.client.post(PATH, json=asked(1))).status_code == 503
        first.cancel()


async def test_no_more_than_half_of_the_budget_of_bytes_waits():
    body = asked(0) | {"stop": ["a" * 1500]}
    listen = ListenSettings(max_body=3000, max_held=4000)
    async with running(config_for(f"http://127.0.0.1:{free_in_a_row()}", limits=PATIENT, listen=listen)) as gateway:
        memory = gateway.gateway.memory
        first = asyncio.create_task(gateway.client.post(PATH, json=body))
        await eventually(lambda: memory.standing_by > 1500, "it stands by", within=30)
        refused = await gateway.client.post(PATH, json=body)
        assert refused.status_code == 503
        assert "half of listen.max_held" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        [small] = await ask(gateway, 1, before=1)
        for task in (first, small):
            task.cancel()
        await eventually(lambda: gateway.idle() and not memory.standing_by, "all is given back", within=30)


@pytest.mark.parametrize("queue", [None, QueueSettings()], ids=["no queue", "queue"])
async def test_without_the_setting_it_is_an_error_at_once(queue):
    async with running(config_for(f"http://127.0.0.1:{free_in_a_row()}", queue=queue)) as gateway:
        reply = await gateway.client.post(PATH, json=asked(0))
        assert reply.status_code == 503
        assert (await gateway.client.get("/readyz")).status_code == 503


async def test_who_is_refused_by_the_last_engine_waits_for_its_successor():
    port = free_in_a_row()
    # It is scraped so rarely that only a request can notice that it has gone.
    config = config_for(f"http://127.0.0.1:{port}", limits=PATIENT)
    fleet = replace(config.fleet, scrape=replace(config.fleet.scrape, interval=1000.0))
    engine = EngineServer(EngineSettings())
    await engine.start(port=port)
    async with running(replace(config, fleet=fleet)) as gateway:
        assert (await gateway.client.post(PATH, json=asked(0))).status_code == 200
        await engine.close()
        [waits] = await ask(gateway, 1)
        async with simulated(where={"port": port}) as successor:
            assert (await waits).status_code == 200
            assert order(successor) == [1]
            await eventually(gateway.idle, within=30)


async def test_all_that_drains_is_waited_for_too():
    async with simulated() as engine, running(config_for(engine.url, limits=PATIENT)) as gateway:
        name = gateway.gateway.fleet.all_endpoints[0].name
        await gateway.client.post(f"{gateway.admin_url}/endpoints/{name}/drain")
        [waits] = await ask(gateway, 1)
        await gateway.client.delete(f"{gateway.admin_url}/endpoints/{name}/drain")
        assert (await waits).status_code == 200


@pytest.mark.parametrize("queue", [None, QueueSettings()], ids=["no queue", "queue"])
async def test_a_model_without_any_endpoint_serves_who_waits_once_one_registers(queue):
    async with running(config_for(limits=PATIENT, queue=queue)) as gateway:
        sent = await ask(gateway, 0, 1)
        assert 'kvgate_wanted_engines{model="sim",role="both"} 1.0' in await gateway.metrics()
        async with simulated() as engine:
            registered = await gateway.client.post(f"{gateway.admin_url}/endpoints", json={"url": engine.url})
            assert registered.is_success, registered.text
            assert [reply.status_code for reply in await asyncio.gather(*sent)] == [200, 200]
            assert order(engine) == [0, 1]
