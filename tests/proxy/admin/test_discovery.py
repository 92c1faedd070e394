"""Engines that register themselves at a running gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.chat import chat
from tests.support.engines import engines, simulated
from tests.support.gateway import PATIENT_FLEET, Running, config_for, running
from tests.support.wait import eventually

PATH = "/v1/chat/completions"


async def register(gateway: Running, **body: Any) -> httpx.Response:
    return await gateway.client.post(f"{gateway.admin_url}/endpoints", json=body)


async def listed(gateway: Running) -> dict[str, Any]:
    told: dict[str, Any] = (await gateway.client.get(f"{gateway.admin_url}/discovery")).json()
    return told


def served(gateway: Running) -> set[str]:
    (runtime,) = gateway.gateway.directory.runtimes
    return {one.name for one in gateway.gateway.fleet.endpoints(runtime.model) if not one.draining}


async def test_when_the_answer_comes_requests_may_be_placed_there_and_a_reload_keeps_it() -> None:
    config = config_for(fleet=PATIENT_FLEET)
    async with simulated() as engine, running(config) as gateway:
        reply = await register(gateway, url=engine.url, name="one", labels={"zone": "a"})
        expected = {"model": "sim", "name": "one", "url": engine.url, "role": "both", "ends_in": None}
        assert (reply.status_code, reply.json()) == (200, {"endpoint": expected})
        assert (await gateway.client.post(PATH, json=chat())).status_code == 200
        assert (await gateway.reload(config)).status_code == 200
        assert served(gateway) == {"one"}
        assert (await listed(gateway))["registered"] == [expected]
        gone = await gateway.client.delete(f"{gateway.admin_url}/endpoints/one")
        assert gone.json() == {"endpoints": [expected]}
        assert served(gateway) == set()
        assert (await gateway.client.delete(f"{gateway.admin_url}/endpoints/one")).status_code == 404
        assert (await gateway.client.post(PATH, json=chat())).status_code == 503


async def test_one_that_is_not_heard_of_in_time_is_removed(caplog) -> None:
    async with simulated() as engine, running(config_for(fleet=PATIENT_FLEET)) as gateway:
        assert (await register(gateway, url=engine.url, ttl=1)).json()["endpoint"]["ends_in"] <= 1.0
        assert (await register(gateway, url=engine.url, ttl=1.5)).status_code == 200
        assert len(served(gateway)) == 1
        await eventually(lambda: not served(gateway))
        assert "has not been heard of in time" in caplog.text
        assert (await listed(gateway))["registered"] == []


async def test_many_at_once() -> None:
    async with engines(12) as servers, running(config_for(fleet=PATIENT_FLEET)) as gateway:
        replies = await asyncio.gather(*(register(gateway, url=server.url) for server in servers))
        assert {reply.status_code for reply in replies} == {200}
        assert len(served(gateway)) == 12
        names = [reply.json()["endpoint"]["name"] for reply in replies]
        gone = await asyncio.gather(*(gateway.client.delete(f"{gateway.admin_url}/endpoints/{name}") for name in names))
        assert {reply.status_code for reply in gone} == {200}
        assert served(gateway) == set()


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b'{"url": "http://a:1", "ttl": -1}', 400, "ttl must be in"),
        (b'{"url": "http://a:1", "kv_events": {"connects": true}}', 400, "kv_events.listen"),
        (b'{"url": "https://a:1", "tls": {"ca": "/nowhere.pem"}}', 400, "/nowhere.pem"),
        (b" " * (2 << 20), 413, ""),
    ],
)
async def test_what_does_not_fit_is_refused_and_changes_nothing(body: bytes, status: int, why: str) -> None:
    async with running(config_for(fleet=PATIENT_FLEET)) as gateway:
        reply = await gateway.client.post(f"{gateway.admin_url}/endpoints", content=body)
        assert reply.status_code == status, reply.text
        assert why in reply.text
        assert (await listed(gateway))["registered"] == []
        assert served(gateway) == set()


@pytest.mark.parametrize(
    "wrong", [{"kv_events": {"connects": True}}, {"tls": {"ca": "/nowhere.pem"}, "url": "https://127.0.0.1:1"}]
)
async def test_one_that_is_refused_leaves_what_was_there_under_its_url(wrong: dict[str, Any]) -> None:
    url = wrong.get("url", "http://127.0.0.1:1")
    async with running(config_for(fleet=PATIENT_FLEET)) as gateway:
        before = (await register(gateway, url=url, name="one")).json()["endpoint"]
        assert (await register(gateway, **{"url": url, "name": "one", **wrong})).status_code == 400
        assert (await listed(gateway))["registered"] == [before]
        await eventually(lambda: served(gateway) == {"one"})
        assert (await listed(gateway))["left_out"] == []


async def test_a_page_in_an_operators_browser_may_not() -> None:
    async with running(config_for(fleet=PATIENT_FLEET)) as gateway:
        headers = {"Origin": "http://evil.test"}
        for method, path in (("POST", "/endpoints"), ("DELETE", "/endpoints/x")):
            reply = await gateway.client.request(method, f"{gateway.admin_url}{path}", json={}, headers=headers)
            assert reply.status_code == 403
