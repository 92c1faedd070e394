"""Covers: gateway/fleet/waker.py, gateway/proxy/admin/operations.py, gateway/fleet/engine_figures.py.

Sleeping engines on real sockets: they get nothing, what they held is forgotten, and they are woken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.fleet import waker
from gateway.flow.settings import FlowSettings
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.engines import engines, simulated
from tests.support.gateway import Running, config_for, running
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
ASKED = {"model": "sim", "messages": [{"role": "user", "content": "a prompt of blocks " * 8}], "max_tokens": 2}
ON_DEMAND: dict[str, Any] = {"limits": FlowSettings(no_endpoint_timeout=300.0), "wake": "on-demand"}


def wakings(*servers: EngineServer) -> int:
    return sum(one.path == "/wake_up" for server in servers for one in server.received)


async def asleep(gateway: Running, *servers: EngineServer, level: int = 1) -> None:
    for server in servers:
        await server.service.sleep(level, "abort")
    await eventually(lambda: all(gateway.down(server.url) for server in servers), "they are seen asleep", within=30)


@pytest.mark.parametrize("level", [0, 1])
async def test_an_engine_that_sleeps_gets_nothing_and_what_it_lost_is_forgotten(tokenizer, level):
    async with simulated(tokenizer=tokenizer) as engine:
        async with running(config_for(engine.url, tokenizer=tokenizer)) as gateway:
            assert (await gateway.client.post(PATH, json=ASKED)).status_code == 200
            await gateway.heard(engine)
            index = gateway.gateway.directory.runtimes[0].index
            blocks = index.blocks
            assert blocks > 0
            await asleep(gateway, engine, level=level)
            refused = await gateway.client.post(PATH, json=ASKED)
            assert refused.status_code == 503
            [unusable] = (await gateway.client.get("/readyz")).json()["models"]["sim"]["unusable"].values()
            assert unusable == "asleep"
            assert 'reason="asleep"} 1.0' in await gateway.metrics()
            await eventually(lambda: index.blocks == (blocks if level == 0 else 0), within=30)
            name = gateway.gateway.fleet.all_endpoints[0].name
            woken = await gateway.client.post(f"{gateway.admin_url}/endpoints/{name}/wake")
            assert (woken.status_code, woken.json()["endpoints"][0]["name"]) == (200, name)
            await eventually(lambda: not gateway.down(engine.url), within=30)
            assert (await gateway.client.post(PATH, json=ASKED)).status_code == 200
            again = await gateway.client.post(f"{gateway.admin_url}/endpoints/{name}/wake")
            assert (again.status_code, wakings(engine)) == (200, 1)


async def test_who_cannot_be_woken_is_told_why():
    async with simulated() as bare, simulated(dev_mode=False) as closed:
        async with running(config_for(bare.url, closed.url)) as gateway:
            await asleep(gateway, bare, level=2)
            await asleep(gateway, closed)
            names = [endpoint.name for endpoint in gateway.gateway.fleet.all_endpoints]
            words = ["without its weights", "VLLM_SERVER_DEV_MODE"]
            for name, word in zip(names, words, strict=True):
                refused = await gateway.client.post(f"{gateway.admin_url}/endpoints/{name}/wake")
                assert refused.status_code == 409
                assert word in refused.json()["error"]["message"]
            assert (await gateway.client.post(f"{gateway.admin_url}/endpoints/x/wake")).status_code == 404
            page = await gateway.client.post(f"{gateway.admin_url}/endpoints/x/wake", headers={"Origin": "http://a"})
            assert page.status_code == 403


async def test_the_first_request_wakes_one_engine_for_all():
    async with engines(2) as servers, running(config_for(*(s.url for s in servers), **ON_DEMAND)) as gateway:
        await asleep(gateway, *servers)
        assert (await gateway.client.get("/readyz")).status_code == 200
        replies = await asyncio.gather(*(gateway.client.post(PATH, json=ASKED) for _ in range(6)))
        assert [reply.status_code for reply in replies] == [200] * 6
        assert wakings(*servers) == 1
        assert sum(gateway.down(server.url) for server in servers) == 1, "the other one sleeps on"


async def test_who_waits_wakes_an_engine_that_is_known_to_sleep_only_later():
    port = free_in_a_row()
    engine = EngineServer(EngineSettings())
    async with running(config_for(f"http://127.0.0.1:{port}", **ON_DEMAND)) as gateway:
        waits = asyncio.create_task(gateway.client.post(PATH, json=ASKED))
        standby = gateway.gateway.directory.runtimes[0].standby
        await eventually(lambda: standby.waiting == 1, "it stands by", within=30)
        await engine.service.sleep(1, "abort")
        await engine.start(port=port)
        try:
            assert (await waits).status_code == 200
            assert wakings(engine) == 1
        finally:
            await engine.close()


async def test_where_one_does_not_wake_up_the_next_one_is_woken(monkeypatch):
    monkeypatch.setattr(waker, "AGAIN", 0.05)
    async with simulated(dev_mode=False) as closed, simulated() as other:
        async with running(config_for(closed.url, other.url, **ON_DEMAND)) as gateway:
            await asleep(gateway, closed, other)
            assert (await gateway.client.post(PATH, json=ASKED)).status_code == 200
            assert wakings(closed) >= 1


async def test_an_engine_without_weights_or_in_a_drain_is_not_woken():
    limits = FlowSettings(no_endpoint_timeout=0.3)
    async with engines(2) as servers:
        config = config_for(*(s.url for s in servers), limits=limits, wake="on-demand")
        async with running(config) as gateway:
            await asleep(gateway, servers[0], level=2)
            await asleep(gateway, servers[1])
            drained = next(e for e in gateway.gateway.fleet.all_endpoints if e.engine.url == servers[1].url)
            await gateway.client.post(f"{gateway.admin_url}/endpoints/{drained.name}/drain")
            refused = await gateway.client.post(PATH, json=ASKED)
            assert refused.status_code == 503
            assert "asleep" in refused.json()["error"]["message"]
            assert wakings(*servers) == 0


def test_to_wake_on_demand_requests_must_be_able_to_wait():
    with pytest.raises(ValueError, match="no_endpoint_timeout"):
        config_for("http://a:1", wake="on-demand")
