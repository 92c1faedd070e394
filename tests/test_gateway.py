"""Covers: gateway/app.py, gateway/proxy/serving/director.py, gateway/proxy/serving/placer.py.

The main job, end to end on simulated engines: every request goes to the engine that holds most of its prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest

from gateway.api.settings import PassThroughSettings
from gateway.fleet.settings import CostSettings, EndpointSettings, FleetSettings, ScrapeSettings
from gateway.scheduling.settings import PluginSettings, ProfileSettings, WeightedScorer
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.chat import chat
from tests.support.engines import engines
from tests.support.gateway import PATIENT_FLEET, QUICK_FLEET, Running, config_for, running
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

PATH = "/v1/chat/completions"


async def ask(gateway: Running, body: dict[str, object]) -> dict:
    reply = await gateway.client.post(PATH, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def synced(gateway: Running) -> None:
    assert await gateway.gateway.feed.synced(10)


def endpoint_of(gateway: Running, server: EngineServer) -> str:
    return server.url.removeprefix("http://")


async def test_the_expected_hit_is_what_the_engine_reports_request_by_request(tokenizer):
    """Caches too small for all prefixes, so that engines evict all the time."""
    async with engines(3, tokenizer=tokenizer, num_blocks=400) as servers:
        seldom = replace(QUICK_FLEET, scrape=ScrapeSettings(interval=1.0))
        async with running(config_for(*(s.url for s in servers), tokenizer=tokenizer, fleet=seldom)) as gateway:
            await synced(gateway)
            chance = random.Random(1)
            for number in range(120):
                await ask(gateway, chat(chance.randrange(20), number))
                line = gateway.lines[-1]
                assert (line.exact, line.prompt_tokens) == (True, line.reported_prompt_tokens)
                assert line.expected_hit == line.cached_tokens
                await gateway.heard(*servers)
            assert sum(line.cached_tokens for line in gateway.lines) > 0
            assert len({line.endpoint for line in gateway.lines}) == 3


async def test_a_burst_of_siblings_finds_the_engine_of_the_first_before_any_event(tokenizer):
    prefix_first: dict[str, Any] = {
        "plugins": (
            PluginSettings("healthy", "healthy"),
            PluginSettings("prefix", "prefix-cache"),
            PluginSettings("best", "max-score"),
        ),
        "profiles": (
            ProfileSettings(
                name="default", filters=("healthy",), scorers=(WeightedScorer("prefix", 1.0),), picker="best"
            ),
        ),
    }
    async with engines(3, tokenizer=tokenizer, prefill_token_seconds=1e-4) as servers:
        async with running(config_for(*(s.url for s in servers), tokenizer=tokenizer, **prefix_first)) as gateway:
            await synced(gateway)
            await asyncio.gather(*(ask(gateway, chat(7, number, words=2000)) for number in range(4)))
            assert len({line.endpoint for line in gateway.lines}) == 1
            assert [line.match_source for line in gateway.lines].count("predicted") == 3


async def test_a_gateway_that_starts_later_knows_what_was_cached_before(tokenizer):
    async with engines(2, tokenizer=tokenizer) as servers:
        config = config_for(*(s.url for s in servers), tokenizer=tokenizer)
        async with running(config) as first:
            await synced(first)
            await ask(first, chat(1))
            await first.heard(*servers)
            home = first.lines[-1].endpoint
        async with running(config, seed=5) as second:
            await synced(second)
            for question in range(4):
                await ask(second, chat(1, question))
                assert second.lines[-1].endpoint == home
                assert second.lines[-1].expected_hit == second.lines[-1].cached_tokens > 0
                await second.heard(*servers)


async def test_blocks_that_are_announced_once_more_are_no_copies(tokenizer):
    full = {"vllm_xargs": {"kv_cache_report_mode": "full"}}
    passing = PassThroughSettings(vllm_xargs=("kv_cache_report_mode",))
    async with engines(1, tokenizer=tokenizer) as servers:
        async with running(config_for(servers[0].url, tokenizer=tokenizer, pass_through=passing)) as gateway:
            await synced(gateway)
            index = gateway.gateway.directory.runtimes[0].index
            for question in range(4):
                await ask(gateway, chat(1, question, **(full if question else {})))
                # Else the blocks' first announcement is taken for the one that the next request asks for.
                await gateway.heard(*servers)
            (state,) = index._states.values()
            assert len(state.blocks) > 10
            assert not state.blocks.copies.many
            assert not state.awaited_reports


async def test_an_engine_that_restarts_holds_nothing(tokenizer):
    async with contextlib.AsyncExitStack() as stack:
        first = EngineServer(EngineSettings(tokenizer=tokenizer))
        await first.start(port=free_in_a_row())
        gateway = await stack.enter_async_context(running(config_for(first.url, tokenizer=tokenizer)))
        await synced(gateway)
        await ask(gateway, chat(1))
        endpoint = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)[0]
        port, started = first.port, endpoint.engine.started
        assert started is not None
        await first.kill()
        again = EngineServer(EngineSettings(tokenizer=tokenizer))
        await again.start(port=port)
        stack.push_async_callback(again.close)
        await eventually(lambda: endpoint.engine.started not in (None, started), "the restart is noticed")
        await eventually(lambda: endpoint.engine.up, "the engine is up again")
        index = gateway.gateway.directory.runtimes[0].index
        await eventually(lambda: index.blocks == 0, "what the dead process held is forgotten")
        await synced(gateway)
        for question in range(3):
            await ask(gateway, chat(2, question))
            assert gateway.lines[-1].expected_hit == gateway.lines[-1].cached_tokens
            await gateway.heard(again)
        assert gateway.lines[-1].cached_tokens > 0


@pytest.mark.parametrize("why", ["no events", "no tokenizer", "neither"])
async def test_what_is_not_told_is_estimated_from_what_was_sent_where(tokenizer, why):
    """No engine is left because a busy machine made it slow: its cost is not learned, and one late scrape is none."""
    fleet = FleetSettings(cost=CostSettings(fit=False))
    async with engines(3, tokenizer=tokenizer, kv_events=why == "no tokenizer") as servers:
        known = tokenizer if why == "no events" else None
        async with running(config_for(*(s.url for s in servers), tokenizer=known, fleet=fleet)) as gateway:
            homes: dict[int, set[str | None]] = {}
            for number in range(24):
                group = number % 6
                await ask(gateway, chat(group, number))
                homes.setdefault(group, set()).add(gateway.lines[-1].endpoint)
            assert all(len(home) == 1 for home in homes.values())
            assert gateway.lines[-1].match_source == "estimated"
            assert gateway.lines[-1].exact == (why == "no events")


async def test_killed_under_load_costs_no_request_that_had_not_committed(tokenizer):
    async with engines(3, tokenizer=tokenizer, step_seconds=0.005, prefill_token_seconds=2e-5) as servers:
        config = config_for(*(s.url for s in servers), tokenizer=tokenizer, fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            await synced(gateway)
            results: list[tuple[int, str]] = []

            async def visit(number: int) -> None:
                reply = await gateway.client.post(PATH, json=chat(number % 10, number, max_tokens=20))
                results.append((reply.status_code, reply.text))

            visits = [asyncio.get_running_loop().create_task(visit(number)) for number in range(60)]
            await eventually(lambda: servers[1].running > 3, "the doomed engine is at work")
            await servers[1].kill()
            await asyncio.gather(*visits)
            assert [status for status, _ in results] == [200] * 60
            assert max(line.attempts for line in gateway.lines) == 2
            await eventually(gateway.idle, "every permit and reservation is given back")


async def test_ranks_are_endpoints_of_one_engine_with_caches_of_their_own(tokenizer):
    async with engines(1, tokenizer=tokenizer, ranks=2) as (server,):
        endpoints = (EndpointSettings(url=server.url, ranks=2),)
        # Idle as they are, all would go where one was seen to be a little faster.
        fleet = FleetSettings(cost=CostSettings(fit=False))
        async with running(config_for(endpoints=endpoints, tokenizer=tokenizer, fleet=fleet)) as gateway:
            await synced(gateway)
            for number in range(20):
                await ask(gateway, chat(number % 5, number))
                assert gateway.lines[-1].expected_hit == gateway.lines[-1].cached_tokens
                await gateway.heard(server)
            assert {line.endpoint for line in gateway.lines} == {f"{endpoint_of(gateway, server)}/{r}" for r in (0, 1)}
            ranks = [r.headers.get("x-data-parallel-rank") for r in server.received if r.path == PATH]
            assert set(ranks) == {"0", "1"}


async def test_an_adapter_is_a_name_of_its_own_with_blocks_of_its_own(tokenizer):
    async with engines(2, tokenizer=tokenizer, adapters=("poet",)) as servers:
        async with running(config_for(*(s.url for s in servers), tokenizer=tokenizer)) as gateway:
            await synced(gateway)
            listed = {e["id"]: e for e in (await gateway.client.get("/v1/models")).json()["data"]}
            assert listed["poet"]["parent"] == "sim"
            for model in ("sim", "poet", "sim", "poet"):
                await ask(gateway, chat(1, 0) | {"model": model})
                assert gateway.lines[-1].expected_hit == gateway.lines[-1].cached_tokens
                await gateway.heard(*servers)
            cold, other, *again = [line.cached_tokens for line in gateway.lines]
            assert (cold, other) == (0, 0)
            assert min(again) > 0


async def test_a_salt_keeps_blocks_apart(tokenizer):
    async with engines(2, tokenizer=tokenizer) as servers:
        async with running(config_for(*(s.url for s in servers), tokenizer=tokenizer)) as gateway:
            await synced(gateway)
            for salt in ("a", "b", "a", "b", None, None):
                extra = {"cache_salt": salt} if salt else {}
                await ask(gateway, chat(1, 0, **extra))
                assert gateway.lines[-1].expected_hit == gateway.lines[-1].cached_tokens
                await gateway.heard(*servers)
            assert [bool(line.cached_tokens) for line in gateway.lines] == [False, False, True, True, False, True]
