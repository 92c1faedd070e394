"""Gateways as replicas, in one process, on simulated engines and a real server between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway.flow.settings import QueueSettings
from gateway.sharing.load_table import LoadTable
from gateway.sharing.replicas import name_of
from gateway.sharing.seat import Seat
from gateway.sharing.settings import SharingSettings
from gateway.valkey import link
from simulator.server import EngineServer
from tests.support.chat import chat
from tests.support.engines import engines
from tests.support.gateway import Running, config_for, running
from tests.support.valkey import ValkeyServer, needs_valkey
from tests.support.wait import eventually as within_seconds

pytestmark = needs_valkey


async def eventually(condition, what: str = "what is waited for") -> None:
    await within_seconds(condition, what, within=30.0)


@contextlib.asynccontextmanager
async def replica(server: ValkeyServer, servers: list[EngineServer], others: int = 0, seed: int = 0):
    """A gateway that hears so many ``others``."""
    config = config_for(*(engine.url for engine in servers), sharing=SharingSettings(server.settings.url, name="tests"))
    async with running(config, seed=seed) as gateway:
        await eventually(lambda: fresh(gateway) == others)
        yield gateway


@contextlib.asynccontextmanager
async def pair(server: ValkeyServer, count: int = 4, **engine) -> AsyncIterator[tuple[Running, Running]]:
    async with engines(count, **engine) as servers, replica(server, servers) as one:
        async with replica(server, servers, 1, seed=1) as two:
            await eventually(lambda: fresh(one) == 1)
            yield one, two


def fresh(gateway: Running) -> int:
    return gateway.gateway.replicas.states().get("fresh", 0)


def loads(gateway: Running) -> list[int]:
    """Requests of all replicas, by endpoint."""
    gateway.gateway.loads.table.catch_up()
    [runtime] = gateway.gateway.directory.runtimes
    return [each.load.requests for each in gateway.gateway.fleet.endpoints(runtime.model)]


@contextlib.asynccontextmanager
async def streaming(gateway: Running, number: int) -> AsyncIterator[None]:
    body = chat(number, number, stream=True) | {"max_tokens": 4000, "ignore_eos": True}
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        parts = reply.aiter_raw()  # kept: without it the answer would be closed
        await anext(parts)
        yield


async def test_each_places_by_what_the_other_has_booked(server):
    async with pair(server, step_seconds=0.05) as (one, two):
        async with contextlib.AsyncExitStack() as streams:
            for number in range(4):
                gateway, other = (one, two) if number % 2 else (two, one)
                await streams.enter_async_context(streaming(gateway, number))
                await eventually(lambda other=other, number=number: sum(loads(other)) == number + 1)
            assert loads(one) == loads(two) == [1] * 4
        await eventually(lambda: loads(one) == loads(two) == [0] * 4)
        assert 'kvgate_peers{state="fresh"} 1.0' in await one.metrics()
        assert "kvgate_bus_connected 1.0" in await one.metrics()
        assert "kvgate_bus_dropped_total{" not in await one.metrics()


async def test_one_that_ends_is_forgotten_with_its_work(server):
    async with engines(2, step_seconds=0.05) as servers, replica(server, servers) as one:
        async with contextlib.AsyncExitStack() as stack:
            two = await stack.enter_async_context(replica(server, servers, 1))
            await stack.enter_async_context(streaming(two, 1))
            await eventually(lambda: sum(loads(one)) == 1)
            await two.gateway.replicas.close()
            await eventually(lambda: sum(loads(one)) == 0)
            assert fresh(one) == 0


@pytest.mark.parametrize("happens", ["killed", "paused"])
async def test_without_the_server_requests_go_on_and_with_it_all_is_whole_again(server, happens, monkeypatch):
    monkeypatch.setattr(link, "ANSWER", 0.5)
    monkeypatch.setattr("gateway.sharing.peers.GONE", 1.0)
    async with pair(server, 2, step_seconds=0.05) as (one, two), streaming(one, 1):
        await eventually(lambda: sum(loads(two)) == 1)
        if happens == "killed":
            await server.stop()
        else:
            server.pause()
        answers = [gateway.client.post("/v1/chat/completions", json=chat(1, 1)) for gateway in (one, two)]
        assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200, 200]
        await eventually(lambda: not one.gateway.replicas.connected)
        assert "kvgate_bus_connected 0.0" in await one.metrics()
        await eventually(lambda: sum(loads(two)) == 0, "what the other has fades")
        assert sum(loads(one)) == 1, "its own stays"
        answers = [gateway.client.post("/v1/chat/completions", json=chat(2, 2)) for gateway in (one, two)]
        assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200, 200]
        if happens == "killed":
            await server.start()
        else:
            server.go_on()
        await eventually(lambda: sum(loads(two)) == 1, "it is whole again")
        await eventually(lambda: fresh(one) == fresh(two) == 1, "in both directions")


async def test_a_response_is_found_through_any_replica(server):
    async with pair(server, 3) as (one, two):
        first = await one.client.post("/v1/responses", json={"model": "sim", "input": "hello", "store": True})
        assert first.status_code == 200
        response = first.json()["id"]
        key = f"kvgate:tests:resp:{response}"
        while not await server.call("EXISTS", key):  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.01)
        again = {"model": "sim", "input": "go on", "previous_response_id": response}
        home = one.gateway.rooms.responses.engine_of(
            response, one.gateway.fleet.endpoints(one.gateway.directory.runtimes[0].model)
        )
        await two.client.post("/v1/responses", json=again)
        assert home.endswith(str(two.lines[-1].endpoint))
        unknown = await two.client.post("/v1/responses", json=again | {"previous_response_id": "resp_unknown"})
        assert unknown.status_code == 404


async def test_a_gateway_starts_and_serves_without_its_server(tmp_path):
    config_url = "redis://127.0.0.1:1"
    async with engines(1) as servers:
        config = config_for(servers[0].url, sharing=SharingSettings(config_url))
        async with running(config) as gateway:
            assert (await gateway.client.post("/v1/chat/completions", json=chat(1, 1))).status_code == 200
            assert not gateway.gateway.replicas.connected


def test_a_hosts_workers_have_one_name_and_gateways_without_workers_one_each():
    assert name_of("/run/kvgate/1") == name_of("/run/kvgate/1") != name_of("/run/kvgate/2")
    assert name_of(None) != name_of(None)


async def test_of_a_hosts_workers_one_speaks_for_all_and_another_when_it_ends(server, directory):
    memory = LoadTable.create()
    async with engines(4, step_seconds=0.05) as servers, contextlib.AsyncExitStack() as first:
        config = config_for(
            *(engine.url for engine in servers), sharing=SharingSettings(server.settings.url, name="tests")
        )

        def seat(number: int) -> Seat:
            return Seat(number=number, count=2, directory=directory, loads_fd=memory.fd)

        lead = await first.enter_async_context(running(config, seat=seat(0)))
        async with running(config, seat=seat(1)) as worker, replica(server, servers, 1) as other:
            await eventually(lambda: fresh(lead) == 1)
            assert worker.gateway.replicas.states() == {}
            assert worker.gateway.siblings.lead == 0
            async with streaming(lead, 1), streaming(worker, 2):
                await eventually(lambda: sum(loads(other)) == 2, "both are told")
                async with streaming(other, 3):
                    await eventually(lambda: sum(loads(lead)) == sum(loads(worker)) == 3, "and hear")
            async with streaming(worker, 4):
                await first.aclose()
                await eventually(lambda: fresh(worker) == 1, "the next one speaks")
                await eventually(lambda: sum(loads(other)) == 1)
                assert len(other.gateway.replicas.seen()) == 1, "for the same host"
            await eventually(lambda: sum(loads(other)) == 0)
    memory.close()


async def test_what_one_queue_charges_counts_at_the_other(server, monkeypatch):
    sharing = SharingSettings(server.settings.url, name="tests")
    config = config_for("http://127.0.0.1:1", sharing=sharing, queue=QueueSettings())
    async with running(config) as one, running(config) as two:
        await eventually(lambda: fresh(one) == fresh(two) == 1)
        lines = [each.gateway.reloading.wiring.queues["sim"].held.lines for each in (one, two)]
        heard: list[tuple] = []
        monkeypatch.setattr(lines[1], "charged_elsewhere", lambda *charged: heard.append(charged))
        monkeypatch.setattr(
            lines[0], "charges", lambda: {(0, "red"): 2.5, (0, "wrong"): float("nan"), (0, "huge"): 1e30}
        )
        await eventually(lambda: heard[:2] == [(0, "red", 2.5)] * 2, "once a second")
