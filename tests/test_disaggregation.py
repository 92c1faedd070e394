"""Covers: gateway/proxy/serving/handover.py, gateway/proxy/serving/bootstrap.py,
gateway/proxy/serving/connectors/contract.py.

Prefill on one simulated engine, decode on another: the same answers as from one engine, whatever dies on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.config.settings import DEFAULT_PLUGINS, DEFAULT_PROFILES
from gateway.fleet.settings import EndpointSettings
from gateway.proxy.settings import RetrySettings
from simulator.server import EngineServer
from tests.support.engines import simulated
from tests.support.examples import slowly
from tests.support.gateway import Running, running, split_config
from tests.support.wait import eventually

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
PATIENT: dict[str, Any] = {"handshake_timeout": 60.0, "answer_tokens": 12}
"""Of engines that all live: however busy the machine is, an answer is never taken for a missing one."""

GIVES_UP_SOON: dict[str, Any] = {"handshake_timeout": 0.3}
"""Of decode engines whose prefill engine dies: what a dead engine is asked ends with this timeout alone."""

SLOW_PREFILL: dict[str, Any] = {"prefill_token_seconds": 0.0003}
"""Of prefill engines that shall be met while they compute."""


@dataclass
class Fleet:
    """Engines of two roles behind a gateway, and one that does everything alone."""

    gateway: Running
    prefill: list[EngineServer]
    decode: list[EngineServer]
    plain: EngineServer
    plain_client: httpx.AsyncClient

    @property
    def engines(self) -> list[EngineServer]:
        return [*self.prefill, *self.decode]

    async def ask(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.gateway.client.post(path, json=body)

    async def alone(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.plain_client.post(path, json=body)

    async def at_rest(self) -> None:
        """Nothing is booked at the gateway, and nothing runs, waits or is kept on any engine that is alive."""
        await eventually(self.gateway.idle, "every permit and reservation is given back")
        alive = [engine for engine in self.engines if not engine.died.is_set()]
        await eventually(
            lambda: all(engine.running + engine.waiting == 0 for engine in alive), "no engine has a request left"
        )

    def cached_from_elsewhere(self) -> int:
        """Prompt tokens that decode engines fetched."""
        return sum(e.stats.external_hits for server in self.decode for e in server.service.engines)


@contextlib.asynccontextmanager
async def fleet(
    tokenizer: str,
    *,
    prefill: int = 1,
    decode: int = 1,
    connector: str = "nixl",
    parameters: dict[str, Any] | None = None,
    prefilling: dict[str, Any] | None = None,
    decoding: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Fleet]:
    """``settings``: of all engines; ``prefilling``, ``decoding``: of one role. ``parameters``: of the handler."""
    name = "nixl" if connector == "nixl-push" else connector
    async with contextlib.AsyncExitStack() as stack:

        async def start(**more: Any) -> EngineServer:
            return await stack.enter_async_context(simulated(tokenizer=tokenizer, **(PATIENT | settings | more)))

        sources = [await start(connector=connector, kv_role="producer", **(prefilling or {})) for _ in range(prefill)]
        sinks = [await start(connector=connector, kv_role="consumer", **(decoding or {})) for _ in range(decode)]
        plain = await start(connector="none")
        endpoints = (
            *(EndpointSettings(url=s.url, role="prefill", bootstrap_port=bootstrap_port(s)) for s in sources),
            *(EndpointSettings(url=s.url, role="decode") for s in sinks),
        )
        config = split_config(
            [],
            [],
            parameters={"connector": name, **(parameters or {})},
            endpoints=endpoints,
            tokenizer=tokenizer,
            plugins=DEFAULT_PLUGINS,
            profiles=DEFAULT_PROFILES,
            retries=RetrySettings(budget=1.0),
        )
        gateway = await stack.enter_async_context(running(config))
        client = httpx.AsyncClient(base_url=plain.url, timeout=30, verify=False)
        yield Fleet(gateway, sources, sinks, plain, await stack.enter_async_context(client))


def bootstrap_port(server: EngineServer) -> int:
    return int(server.bootstrap.rpartition(":")[2]) if server.bootstrap else 8998


def body_for(path: str, words: int, *, stream: bool, seed: int = 0) -> dict[str, Any]:
    chance = random.Random(f"{words} {seed}")
    text = " ".join(chance.choice(["engine", "block", "token", "prefix", "cache", "queue"]) for _ in range(words))
    prompt: dict[str, Any] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/v1/completions": {"prompt": text},
        "/v1/responses": {"input": text},
        "/v1/messages": {"messages": [{"role": "user", "content": text}], "max_tokens": 8},
    }[path]
    limit = {} if path == "/v1/messages" else {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 8}
    return {"model": "sim", "temperature": 0, "stream": stream, **prompt, **limit}


def text_of(path: str, reply: httpx.Response) -> str:
    """What was generated, streamed or not."""
    assert reply.status_code == 200, reply.text
    if not reply.headers["content-type"].startswith("text/event-stream"):
        answer = reply.json()
        match path:
            case "/v1/chat/completions":
                return answer["choices"][0]["message"]["content"]
            case "/v1/completions":
                return answer["choices"][0]["text"]
            case "/v1/responses":
                return answer["output"][0]["content"][0]["text"]
            case _:
                return answer["content"][0]["text"]
    parts = []
    for line in reply.text.splitlines():
        if not line.startswith("data: {"):
            continue
        event = httpx.Response(200, text=line.removeprefix("data: ")).json()
        assert "error" not in event, event
        choices = event.get("choices") or [{}]
        delta = choices[0].get("delta", event.get("delta"))
        if isinstance(delta, dict):
            parts.append(delta.get("content") or delta.get("text") or "")
        else:
            parts.append(delta or choices[0].get("text") or "")
    return "".join(parts)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ROUTES)
async def test_a_pair_answers_as_one_engine(path, stream, tokenizer):
    async with fleet(tokenizer) as pair:
        for words in (10, 100, 1000):
            body = body_for(path, words, stream=stream)
            assert text_of(path, await pair.ask(path, body)) == text_of(path, await pair.alone(path, body))
            line = pair.gateway.lines[-1]
            assert (line.plan, line.fallback) == ("split", None)
        await pair.at_rest()
        assert pair.cached_from_elsewhere() > 1000


@pytest.mark.parametrize("stream", [True, *slowly(False)], ids=["streamed", "whole"])
@pytest.mark.parametrize("connector", ["nixl", "nixl-push", "mooncake", "sglang", "shared-storage"])
async def test_every_connector(connector, stream, tokenizer, tmp_path):
    storage = str(tmp_path) if connector == "shared-storage" else None
    async with fleet(tokenizer, connector=connector, storage=storage) as pair:
        path = "/v1/chat/completions"
        bodies = [body_for(path, 200, stream=stream, seed=seed) for seed in range(8)]
        replies = await asyncio.gather(*(pair.ask(path, body) for body in bodies))
        for body, reply in zip(bodies, replies, strict=True):
            assert text_of(path, reply) == text_of(path, await pair.alone(path, body))
        assert [(line.plan, line.fallback) for line in pair.gateway.lines] == [("split", None)] * 8
        await pair.at_rest()
        assert pair.cached_from_elsewhere() > 8 * 200


@pytest.mark.parametrize("stream", [True, *slowly(False)], ids=["streamed", "whole"])
@pytest.mark.parametrize("connector", ["nixl", "nixl-push", "mooncake", "sglang", "shared-storage"])
@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_prefill_engine_that_dies(when, connector, stream, tokenizer, tmp_path):
    storage = str(tmp_path) if connector == "shared-storage" else None
    engines = 2 if connector == "sglang" else 1  # SGLang's serve nothing alone: another pair must cure it
    roles = {"prefilling": SLOW_PREFILL, "decoding": GIVES_UP_SOON}
    async with fleet(tokenizer, prefill=engines, connector=connector, storage=storage, **roles) as pair:
        path = "/v1/chat/completions"
        bodies = [body_for(path, 300, stream=stream, seed=seed) for seed in range(4)]
        if when == "before":
            await pair.prefill[0].kill()
        asked = [asyncio.get_running_loop().create_task(pair.ask(path, body)) for body in bodies]
        if when == "during":
            await eventually(lambda: pair.prefill[0].running, "the prefill runs")
            await pair.prefill[0].kill()
        for body, reply in zip(bodies, await asyncio.gather(*asked), strict=True):
            assert text_of(path, reply) == text_of(path, await pair.alone(path, body))
        await pair.at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_prefill_engine_that_dies_with_the_kv_that_is_waited_for(stream, tokenizer):
    async with fleet(tokenizer, decoding={"kv_transfer_seconds": 0.01} | GIVES_UP_SOON) as pair:
        path = "/v1/chat/completions"
        bodies = [body_for(path, 300, stream=stream, seed=seed) for seed in range(4)]
        asked = [asyncio.get_running_loop().create_task(pair.ask(path, body)) for body in bodies]
        await eventually(
            lambda: all(sum(r.path == path for r in s.received) == 4 for s in pair.engines), "all legs are sent"
        )
        await pair.prefill[0].kill()
        for body, reply in zip(bodies, await asyncio.gather(*asked), strict=True):
            assert text_of(path, reply) == text_of(path, await pair.alone(path, body))
        assert {line.fallback for line in pair.gateway.lines} == {"decode-error"}
        await pair.at_rest()


async def test_kv_that_cannot_be_fetched_is_computed_whatever_the_stream_began_with(tokenizer):
    """Simulated streams fail as each of vLLM's routes does: some announce an answer first, and one is cut off."""
    async with fleet(tokenizer) as pair:
        for path in ROUTES:
            for stream in (False, True):
                pair.decode[0].faults.inject("kv-fail", times=1)
                body = body_for(path, 100, stream=stream)
                assert text_of(path, await pair.ask(path, body)) == text_of(path, await pair.alone(path, body))
                line = pair.gateway.lines[-1]
                assert (line.fallback, line.outcome, line.attempts) == ("decode-error", "ok", 1), (path, stream)
        await pair.at_rest()


async def test_a_decode_engine_that_dies_is_replaced_where_nothing_was_committed(tokenizer):
    async with fleet(tokenizer, decode=2, decoding={"step_seconds": 0.02}) as pair:
        path = "/v1/chat/completions"
        bodies = [body_for(path, 200, stream=seed % 2 == 0, seed=seed) for seed in range(12)]
        asked = [asyncio.get_running_loop().create_task(pair.ask(path, body)) for body in bodies]
        await eventually(lambda: all(s.running for s in pair.decode), "both decode")
        await pair.decode[0].kill()
        broken = 0
        for body, reply in zip(bodies, await asyncio.gather(*asked), strict=True):
            if body["stream"] and '"error"' in reply.text:
                broken += 1
                continue
            assert text_of(path, reply) == text_of(path, await pair.alone(path, body))
        assert broken == sum(line.outcome == "broken" for line in pair.gateway.lines)
        assert any(line.attempts == 2 for line in pair.gateway.lines)
        await pair.at_rest()
