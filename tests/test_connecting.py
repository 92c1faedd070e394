"""Covers: gateway/kvcache/events/listener.py, gateway/proxy/extras/reannounce.py.

Engines that connect to the gateway with their KV events, and those without history that are asked to tell of it.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.api.settings import PassThroughSettings
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, KvEventsSettings
from gateway.kvcache.settings import CacheSettings, ListenerSettings
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.chat import chat
from tests.support.engines import simulated
from tests.support.gateway import IN_TURN, Running, config_for, running
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
CONNECTS = KvEventsSettings(connects=True)
FULL = {"kv_cache_report_mode": "full"}

PLAIN = EngineSettings(connector="none")
FEW = replace(PLAIN, num_blocks=300)


@pytest.fixture
def listen() -> str:
    """An address whose port, and the next two, were free a moment ago."""
    return f"tcp://127.0.0.1:{free_in_a_row(3)}"


def config(tokenizer: str, listen: str | None, *endpoints: EndpointSettings, **changes: Any) -> Config:
    return config_for(tokenizer=tokenizer, endpoints=endpoints, kv_events=ListenerSettings(listen), **changes)


async def ask(gateway: Running, body: dict[str, Any]) -> tuple[int, int]:
    """The expected and the reported hit of a request."""
    reply = await gateway.client.post(PATH, json=body)
    assert reply.status_code == 200, reply.text
    line = gateway.lines[-1]
    assert line.cached_tokens is not None
    return line.expected_hit, line.cached_tokens


async def states(gateway: Running) -> dict[str, str]:
    """Of each endpoint's stream."""
    found = {}
    for line in (await gateway.metrics()).splitlines():
        if line.startswith("kvgate_kv_stream_state{") and line.endswith(" 1.0"):
            labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
            found[labels["endpoint"].strip('"')] = labels["state"].strip('"')
    return found


def sent(server: EngineServer) -> list[dict[str, Any]]:
    return [json.loads(one.body) for one in server.received if one.path == PATH]


class TestEnginesThatConnect:
    async def test_hits_are_exact(self, tokenizer: str, listen: str) -> None:
        """Two that evict all the time, with the topics that are expected if none is configured."""
        async with (
            simulated(
                tokenizer=tokenizer, connector="none", kv_connect=listen, topic="kv@a@sim", num_blocks=300
            ) as first,
            simulated(
                tokenizer=tokenizer, connector="none", kv_connect=listen, topic="kv@b@sim", num_blocks=300, replay=False
            ) as second,
        ):
            both = [
                EndpointSettings(first.url, name="a", kv_events=CONNECTS),
                EndpointSettings(second.url, name="b", kv_events=CONNECTS),
            ]
            async with running(config(tokenizer, listen, *both, **IN_TURN)) as gateway:
                port = gateway.gateway.feed._listener.port(0)
                await eventually(lambda: len(port._accepted) == 2, "both are connected")
                for number in range(60):
                    expected, reported = await ask(gateway, chat(number % 14, number))
                    if number > 4:  # each has been heard by then
                        assert expected == reported
                        await gateway.heard(first, second)
                assert sum(line.cached_tokens or 0 for line in gateway.lines) > 0
                found = await states(gateway)
                assert found["a"] == "live"
                assert found["b"] in ("live", "partial")  # what it said before it was connected is lost

    async def test_each_rank_is_heard_at_its_own_port(self, tokenizer: str, listen: str) -> None:
        async with simulated(PLAIN, tokenizer=tokenizer, kv_connect=listen, topic="t", ranks=3) as server:
            events = KvEventsSettings(connects=True, topic="t")
            one = EndpointSettings(server.url, kv_events=events)
            async with running(config(tokenizer, listen, one, **IN_TURN)) as gateway:
                for number in range(30):
                    expected, reported = await ask(gateway, chat(number % 6, number))
                    assert expected == reported
                assert sum(line.cached_tokens or 0 for line in gateway.lines) > 0
                assert await gateway.gateway.feed.synced(10)
                assert set((await states(gateway)).values()) == {"live"}

    async def test_a_gateway_that_starts_later_knows_what_was_cached_before(self, tokenizer: str, listen: str) -> None:
        async with simulated(PLAIN, tokenizer=tokenizer, kv_connect=listen, topic="kv@a@sim") as server:
            one = config(tokenizer, listen, EndpointSettings(server.url, name="a", kv_events=CONNECTS))
            async with running(one) as first:
                await ask(first, chat(1))
            async with running(one) as second:
                assert await second.gateway.feed.synced(10)
                expected, reported = await ask(second, chat(1, 1))
                assert expected == reported > 0

    async def test_nothing_can_listen_where_another_does(self, tokenizer: str, listen: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", int(listen.rpartition(":")[2])))
            taken.listen()
            endpoint = EndpointSettings("http://127.0.0.1:1", kv_events=CONNECTS)
            with pytest.raises(ConfigError, match=r"kv_events.listen: cannot listen on .*: Address already in use"):
                async with running(config(tokenizer, listen, endpoint)):
                    pass

    async def test_several_ranks_behind_one_endpoint_are_estimated(self, tokenizer: str, listen: str) -> None:
        async with simulated(
            tokenizer=tokenizer, connector="none", kv_connect=listen, topic="kv@a@sim", ranks=2
        ) as server:
            endpoint = EndpointSettings(server.url, name="a", ranks=1, kv_events=CONNECTS)
            async with running(config(tokenizer, listen, endpoint)) as gateway:
                await ask(gateway, chat(1))
                assert await states(gateway) == {"a": "off"}


class TestWhatAnEngineIsAskedToTell:
    """Before the gateway came, the engine computed ``chat(1)``; it has no replay socket.

    Its blocks are not of the size that an index begins with: what is to be asked survives that it learns theirs.
    """

    @contextlib.asynccontextmanager
    async def late(
        self, tokenizer: str, reannounce: int, **changes: Any
    ) -> AsyncIterator[tuple[Running, EngineServer]]:
        async with simulated(PLAIN, tokenizer=tokenizer, replay=False, block_size=32) as server:
            endpoint = EndpointSettings(server.url)
            async with running(config(tokenizer, None, endpoint)) as before:
                await ask(before, chat(1))
            server.received.clear()
            settings = CacheSettings(reannounce=reannounce)
            async with running(config(tokenizer, None, endpoint, kv_cache=settings, **changes)) as gateway:
                assert await gateway.gateway.feed.synced(10)
                assert list((await states(gateway)).values()) == ["partial"]
                yield gateway, server

    async def test_it_is_asked_nothing_by_default(self, tokenizer: str) -> None:
        assert CacheSettings().reannounce == 0
        async with self.late(tokenizer, 0) as (gateway, server):
            expected, reported = await ask(gateway, chat(1, 1))
            assert expected < reported
            assert all("vllm_xargs" not in body for body in sent(server))

    async def test_what_it_held_is_known_from_the_first_request_on(self, tokenizer: str) -> None:
        async with self.late(tokenizer, 2) as (gateway, server):
            expected, reported = await ask(gateway, chat(1, 1))
            assert expected < reported
            for question in range(2, 6):
                expected, reported = await ask(gateway, chat(1, question))
                assert expected == reported > 0
            assert [body.get("vllm_xargs") for body in sent(server)] == [FULL, FULL, None, None, None]

    async def test_it_makes_no_copies(self, tokenizer: str) -> None:
        async with self.late(tokenizer, 5) as (gateway, server):
            for question in range(1, 6):
                await ask(gateway, chat(1, question))
            publisher = server.service.sockets.publishers[0]
            index = gateway.gateway.directory.runtimes[0].index
            blocks = index._states[0].blocks
            await eventually(lambda: not index._states[0].awaited_reports, f"all {publisher.next_seq} are heard")
            assert len(blocks) == len(server.cache.held)
            assert not blocks.copies.many

    async def test_of_a_request_that_fails_no_report_is_awaited(self, tokenizer: str) -> None:
        async with self.late(tokenizer, 5) as (gateway, server):
            index = gateway.gateway.directory.runtimes[0].index
            for fault in ("admission", "hang", "drop"):
                server.faults.inject(fault, path=PATH)
                with contextlib.suppress(httpx.TimeoutException):
                    timeout = 0.5 if fault == "hang" else 10.0
                    answer = await gateway.client.post(PATH, json=chat(1, 1), timeout=timeout)
                    assert answer.status_code >= 500
                await eventually(gateway.idle, "it is over")
                assert sent(server)[-1]["vllm_xargs"] == FULL
                assert not index._states[0].awaited_reports
                server.faults.clear()

    async def test_the_rest_of_the_body_is_the_clients_own(self, tokenizer: str) -> None:
        raw = json.dumps(chat(1, 1)).replace('"max_tokens": 3', '"max_tokens":   3, "temperature": 0.10')
        async with self.late(tokenizer, 1) as (gateway, server):
            for _ in range(2):
                reply = await gateway.client.post(PATH, content=raw, headers={"content-type": "application/json"})
                assert reply.status_code == 200
            asked, plain = (one.body.decode() for one in server.received if one.path == PATH)
            assert plain == raw
            assert json.loads(asked) == {**json.loads(raw), "vllm_xargs": FULL}
            assert '"temperature":0.10' in asked, "a value's bytes stay"

    async def test_a_clients_own_arguments_stay(self, tokenizer: str) -> None:
        passing = PassThroughSettings(vllm_xargs=("kv_cache_report_mode", "other"))
        async with self.late(tokenizer, 9, pass_through=passing) as (gateway, server):
            for own in ({"other": 1.50}, {"kv_cache_report_mode": "incremental"}, FULL, None):
                await ask(gateway, chat(1, vllm_xargs=own))
            told = [body.get("vllm_xargs") for body in sent(server)]
            assert told == [{"other": 1.5} | FULL, {"kv_cache_report_mode": "incremental"}, FULL, FULL]

    async def test_several_answers_are_not_asked_for(self, tokenizer: str) -> None:
        async with self.late(tokenizer, 9) as (gateway, server):
            await ask(gateway, chat(1, n=2))
            assert [body.get("vllm_xargs") for body in sent(server)] == [None]
