"""Ranks in front of simulated engines, through a whole gateway: what is learned is what requests are sent with."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from gateway.fleet.settings import CostSettings, EndpointSettings
from gateway.framework import Endpoint
from gateway.framework.fleet import Model
from simulator.server import EngineServer
from tests.support.chat import chat
from tests.support.engines import simulated
from tests.support.gateway import PATIENT_FLEET, Running, config_for, running
from tests.support.wait import eventually

PATH = "/v1/chat/completions"

EVEN = replace(PATIENT_FLEET, cost=CostSettings(fit=False))
"""Idle as the engines are, all requests would go where one was first seen to be fast."""


def headers(server: EngineServer) -> set[str | None]:
    """The ranks that its requests asked for."""
    return {request.headers.get("x-data-parallel-rank") for request in server.received if request.path == PATH}


def endpoints(gateway: Running) -> list[Endpoint]:
    (runtime,) = gateway.gateway.directory.runtimes
    return list(gateway.gateway.fleet.endpoints(runtime.model))


async def test_every_rank_has_its_header_its_events_and_its_cache(tokenizer):
    async with simulated(tokenizer=tokenizer, ranks=3) as server:
        async with running(config_for(server.url, tokenizer=tokenizer, fleet=EVEN)) as gateway:
            assert [endpoint.rank for endpoint in endpoints(gateway)] == [0, 1, 2]
            assert await gateway.gateway.feed.synced(10)
            for number in range(30):
                reply = await gateway.client.post(PATH, json=chat(number % 6, number))
                assert reply.status_code == 200, reply.text
                line = gateway.lines[-1]
                # Events of another rank than the one that computed it would make this wrong at once.
                assert line.expected_hit == line.cached_tokens
            assert sum(line.cached_tokens for line in gateway.lines) > 0
            name = server.url.removeprefix("http://")
            assert {line.endpoint for line in gateway.lines} == {f"{name}/{rank}" for rank in range(3)}
            assert headers(server) == {"0", "1", "2"}
            shown = await gateway.metrics()
            assert f'kvgate_kv_stream_state{{endpoint="{name}/2",state="live"}} 1.0' in shown
            assert f'endpoint="{name}"' not in shown, "the endpoint it was taken for at first has left no series"


async def test_one_rank_by_configuration_is_sent_no_header(tokenizer):
    async with simulated(tokenizer=tokenizer, ranks=2) as server:
        configured = (EndpointSettings(url=server.url, ranks=1),)
        async with running(config_for(endpoints=configured, tokenizer=tokenizer, fleet=PATIENT_FLEET)) as gateway:
            for number in range(4):
                assert (await gateway.client.post(PATH, json=chat(number))).status_code == 200
            assert headers(server) == {None}


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 1), (1, 2)])
async def test_an_engine_that_comes_back_with_other_ranks_serves_on_all_of_them(tokenizer, before, after):
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(simulated(tokenizer=tokenizer, ranks=before))
        config = config_for(server.url, tokenizer=tokenizer, fleet=EVEN)
        gateway = await stack.enter_async_context(running(config))
        old = endpoints(gateway)
        port = int(server.url.rpartition(":")[2])

        async def visit(number: int) -> int:
            body = chat(number, stream=True, max_tokens=200)
            return (await gateway.client.post(PATH, json=body)).status_code

        visits = [asyncio.get_running_loop().create_task(visit(number)) for number in range(12)]
        await eventually(lambda: server.running > 2, "requests are under way")
        await server.kill()
        again = await stack.enter_async_context(simulated(where={"port": port}, tokenizer=tokenizer, ranks=after))
        await eventually(lambda: [e.engine.up for e in endpoints(gateway)] == [True] * after, "all its ranks are up")
        await asyncio.gather(*visits)
        assert await gateway.gateway.feed.synced(10)
        # All at once and long, so that none of the ranks is the best for every one of them.
        assert await asyncio.gather(*(visit(number) for number in range(12))) == [200] * 12
        assert headers(again) == ({str(rank) for rank in range(after)} if after > 1 else {None})
        await eventually(gateway.idle, "nothing is booked")
        for load in [endpoint.load for endpoint in old]:  # also of those that were dropped
            await eventually(lambda load=load: not (load.requests or load.prefill_tokens or load.kv_tokens), "settled")


async def test_a_rank_that_goes_between_placement_and_sending_still_gets_the_key(tokenizer, monkeypatch):
    async with simulated(tokenizer=tokenizer, ranks=2, api_key="engine-key") as server:
        configured = EndpointSettings(url=server.url, api_key="engine-key")
        config = config_for(endpoints=(configured,), tokenizer=tokenizer, fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            fleet = gateway.gateway.fleet
            (runtime,) = gateway.gateway.directory.runtimes
            old = endpoints(gateway)
            # As a reload does: what the other configuration wants is made beside the old, and then all changes at once.
            change = await fleet.prepare([(runtime.model, [replace(configured, name="other")])])
            name_of = fleet.served_name
            placed: list[Endpoint] = []

            def change_first(endpoint: Endpoint, model: Model) -> str:
                if not placed and endpoint.load.requests == 1:  # it is placed
                    fleet.apply(change)
                    placed.append(endpoint)
                return name_of(endpoint, model)

            monkeypatch.setattr(fleet, "served_name", change_first)
            reply = await gateway.client.post(PATH, json=chat(1))
            assert reply.status_code == 200, reply.text
            assert [line.endpoint for line in gateway.lines] == [placed[0].name]
            assert [endpoint.rank for endpoint in old] == [0, 1]
            assert headers(server) == {str(placed[0].rank)}
            assert (placed[0].load.requests, placed[0].load.kv_tokens) == (0, 0)
            assert [endpoint.name for endpoint in endpoints(gateway)] == ["other/0", "other/1"]
            assert f'endpoint="{placed[0].name}"' not in await gateway.metrics()
