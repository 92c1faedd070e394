"""Covers: gateway/reload.py, gateway/proxy/admin/operations.py.

One engine out of use without an error: by the file, by an operator, and what is left running there.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.fleet.settings import EndpointSettings
from gateway.scheduling.settings import PluginSettings, ProfileSettings
from simulator.server import EngineServer
from tests.support.engines import engines
from tests.support.gateway import IN_TURN, PATIENT_FLEET, Running, config_for, running, split_config
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4}
LONG: dict[str, Any] = {**CHAT, "max_tokens": 60, "ignore_eos": True}


def name_of(server: EngineServer) -> str:
    return server.url.removeprefix("http://")


async def operate(gateway: Running, method: str, path: str) -> httpx.Response:
    return await gateway.client.request(method, f"{gateway.admin_url}{path}")


async def shown(gateway: Running) -> dict[str, dict[str, Any]]:
    reply = await operate(gateway, "GET", "/endpoints")
    return {endpoint["name"]: endpoint for endpoint in reply.json()["endpoints"]}


async def drained(gateway: Running, name: str) -> None:
    """Wait as an operator's script does."""
    async with asyncio.timeout(60):
        while (await shown(gateway))[name]["state"] != "drained":  # noqa: ASYNC110 -- it is told of no event
            await asyncio.sleep(0.01)


async def test_a_rolling_upgrade_costs_no_request():
    """Each engine in turn: drain, wait for zero, kill, start again, take it back; under load, without one error."""
    async with engines(3, step_seconds=0.003) as servers:
        config = config_for(*(server.url for server in servers), fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            statuses: list[int] = []
            stop = asyncio.Event()

            async def visit() -> None:
                while not stop.is_set():
                    reply = await gateway.client.post(PATH, json={**CHAT, "max_tokens": 10})
                    statuses.append(reply.status_code)

            visits = [asyncio.get_running_loop().create_task(visit()) for _ in range(24)]
            for server in servers:
                name, port = name_of(server), server.port
                assert (await operate(gateway, "POST", f"/endpoints/{name}/drain")).status_code == 200
                await drained(gateway, name)
                assert server.running == server.waiting == 0
                await server.kill()
                await server.start(port=port)
                endpoint = next(e for e in gateway.gateway.fleet.all_endpoints if e.name == name)
                done = len(statuses)
                await eventually(lambda done=done: len(statuses) > done + 24, "the others serve", within=60)
                assert endpoint.load.requests == 0
                reply = await operate(gateway, "DELETE", f"/endpoints/{name}/drain")
                assert reply.json()["endpoints"][0]["drained_by"] == []
                await eventually(lambda e=endpoint: e.engine.up and e.load.requests, "it serves again", within=60)
            stop.set()
            await asyncio.gather(*visits)
            assert set(statuses) == {200}
            assert {line.attempts for line in gateway.lines} == {1}


async def test_what_is_drained_is_told_everywhere():
    async with engines(2, step_seconds=0.01) as servers:
        config = config_for(*(server.url for server in servers), fleet=PATIENT_FLEET, **IN_TURN)
        async with running(config) as gateway:
            running_one = asyncio.get_running_loop().create_task(gateway.client.post(PATH, json=LONG))
            await eventually(lambda: servers[0].running + servers[1].running, "it runs")
            name = name_of(servers[0] if servers[0].running else servers[1])
            (told,) = (await operate(gateway, "POST", f"/endpoints/{name}/drain")).json()["endpoints"]
            assert (told["name"], told["state"], told["running"]) == (name, "draining", 1)
            assert told["drained_by"] == ["operator"]
            assert f'kvgate_endpoint_draining{{endpoint="{name}"}} 1.0' in await gateway.metrics()
            ready = (await gateway.client.get("/readyz")).json()["models"]["sim"]
            assert (ready["ready"], ready["unusable"]) == (True, {name: "draining"})
            for _ in range(4):
                assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
                assert gateway.lines[-1].endpoint != name
            assert (await running_one).status_code == 200
            await drained(gateway, name)
            await operate(gateway, "DELETE", f"/endpoints/{name}/drain")
            assert f'kvgate_endpoint_draining{{endpoint="{name}"}} 0.0' in await gateway.metrics()
            for _ in range(2):
                await gateway.client.post(PATH, json=CHAT)
            assert {line.endpoint for line in gateway.lines[-2:]} == {name_of(server) for server in servers}


async def test_what_the_file_drains_an_operator_does_not_bring_back():
    async with engines(2) as servers:
        one, other = (EndpointSettings(server.url) for server in servers)
        config = config_for(endpoints=(replace(one, drain=True), other))
        async with running(config) as gateway:
            name = name_of(servers[0])
            for method in ("POST", "DELETE"):
                (told,) = (await operate(gateway, method, f"/endpoints/{name}/drain")).json()["endpoints"]
                assert told["state"] == "drained"
            assert told["drained_by"] == ["file"]
            for _ in range(4):
                await gateway.client.post(PATH, json=CHAT)
            assert {line.endpoint for line in gateway.lines} == {name_of(servers[1])}
            await operate(gateway, "POST", f"/endpoints/{name_of(servers[1])}/drain")
            await gateway.reload(config_for(endpoints=(one, other)))
            told_all = await shown(gateway)
            assert [told_all[name_of(server)]["state"] for server in servers] == ["up", "drained"], "a reload keeps it"


async def test_where_all_is_drained_the_answer_says_so_and_profiles_need_no_filter_for_it():
    async with engines(1) as (server,):
        bare = {
            "plugins": (PluginSettings("turn", "round-robin"),),
            "profiles": (ProfileSettings(name="default", picker="turn"),),
        }
        async with running(config_for(server.url, **bare)) as gateway:
            await operate(gateway, "POST", f"/endpoints/{name_of(server)}/drain")
            reply = await gateway.client.post(PATH, json=CHAT)
            assert reply.status_code == 503
            assert "draining" in reply.json()["error"]["message"]
            assert (await gateway.client.get("/readyz")).status_code == 503


async def test_what_goes_on_from_a_response_is_served_where_it_is_kept():
    async with engines(2) as servers:
        async with running(config_for(*(server.url for server in servers))) as gateway:
            body = {"model": "sim", "input": "hi", "max_output_tokens": 2}
            response = (await gateway.client.post("/v1/responses", json=body)).json()["id"]
            home = gateway.lines[-1].endpoint
            await operate(gateway, "POST", f"/endpoints/{home}/drain")
            for _ in range(3):
                reply = await gateway.client.post("/v1/responses", json={**body, "previous_response_id": response})
                assert reply.status_code == 200
                assert gateway.lines[-1].endpoint == home
                response = reply.json()["id"]
                await gateway.client.post("/v1/responses", json=body)
                assert gateway.lines[-1].endpoint != home


async def test_an_engine_is_drained_with_all_its_ranks_and_a_rank_by_itself():
    async with engines(1, ranks=3) as (server,):
        async with running(config_for(server.url)) as gateway:
            name = name_of(server)
            await operate(gateway, "POST", f"/endpoints/{name}/1/drain")
            states = {rank: (await shown(gateway))[f"{name}/{rank}"]["state"] for rank in range(3)}
            assert states == {0: "up", 1: "drained", 2: "up"}
            reply = await operate(gateway, "POST", f"/endpoints/{name}/drain")
            assert len(reply.json()["endpoints"]) == 3
            assert (await gateway.client.post(PATH, json=CHAT)).status_code == 503
            await operate(gateway, "DELETE", f"/endpoints/{name}/drain")
            assert {one["state"] for one in (await shown(gateway)).values()} == {"up"}
            reply = await operate(gateway, "POST", "/endpoints/nobody/drain")
            assert reply.status_code == 404
            assert "'nobody'" in reply.json()["error"]["message"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_no_hand_over_goes_to_what_is_drained(role):
    async with engines(2, kv_role="producer") as prefill, engines(2, kv_role="consumer") as decode:
        config = split_config([e.url for e in prefill], [e.url for e in decode], parameters={})
        async with running(config) as gateway:
            out = (prefill if role == "prefill" else decode)[0]
            await operate(gateway, "POST", f"/endpoints/{name_of(out)}/drain")
            for _ in range(4):
                assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
                assert gateway.lines[-1].plan == "split"
            used = {line.prefill_endpoint if role == "prefill" else line.endpoint for line in gateway.lines}
            assert name_of(out) not in used
            if role == "prefill":
                await operate(gateway, "POST", f"/endpoints/{name_of(prefill[1])}/drain")
                assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
                assert gateway.lines[-1].plan == "no-prefill-endpoint"


async def test_a_prefill_engine_has_work_left_until_its_kv_was_fetched():
    async with (
        engines(1, kv_role="producer") as (prefill,),
        engines(1, kv_role="consumer", kv_transfer_seconds=0.02) as (decode,),
    ):
        async with running(split_config([prefill.url], [decode.url], parameters={})) as gateway:
            name = name_of(prefill)
            asked = asyncio.get_running_loop().create_task(gateway.client.post(PATH, json=CHAT))
            place = next(e for e in gateway.gateway.fleet.all_endpoints if e.name == name)
            await eventually(lambda: decode.running + decode.waiting and not place.load.requests, "it fetches")
            (told,) = (await operate(gateway, "POST", f"/endpoints/{name}/drain")).json()["endpoints"]
            assert (told["state"], told["running"]) == ("draining", 1)
            assert (await asked).status_code == 200
            assert gateway.lines[-1].fallback is None
            await drained(gateway, name)
