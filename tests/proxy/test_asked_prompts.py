"""Covers: gateway/proxy/extras/prompt_questions.py, gateway/tokens/agreement.py.

Chats that only vLLM's own code renders: an engine's ``/tokenize`` tells their tokens, and they are exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gateway.core.observer import Settled
from gateway.proxy.extras.prompt_questions import PromptQuestions
from gateway.tokens.agreement import LEAST, RECOVERY, Form
from gateway.tokens.settings import ForwardSettings
from simulator.server import EngineServer
from simulator.tokenizer import build_tokenizer
from tests.support.engines import simulated
from tests.support.gateway import Running, config_for, running
from tests.support.wait import eventually
from tests.support.wire import Connection, ScriptedServer

CHAT = "/v1/chat/completions"
RENDER = f"{CHAT}/render"
SYSTEM = {"role": "system", "content": "You answer in one short sentence. " * 4}
FORESEEN = "exact if an engine reports the token ids of chats: DeepSeek V3.2 is rendered by code of vLLM's own"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template is the engine's; by its config the gateway takes it for a model that no template renders."""
    folder = build_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    config = json.loads(file.read_text()) if (file := folder / "config.json").exists() else {}
    file.write_text(json.dumps(config | {"architectures": ["DeepseekV32ForCausalLM"]}))
    return folder


@pytest.fixture
async def engine(tokenizer: Path) -> AsyncIterator[EngineServer]:
    async with simulated(tokenizer=str(tokenizer)) as server:
        yield server


@contextlib.asynccontextmanager
async def gateway_of(tokenizer: Path, *engines: EngineServer, **tokens: Any) -> AsyncIterator[Running]:
    urls = (engine.url for engine in engines)
    async with running(config_for(*urls, tokenizer=str(tokenizer), tokens=ForwardSettings(**tokens))) as gateway:
        assert await gateway.gateway.feed.synced(10)
        yield gateway


def chat(text: str = "What is the weather?", **more: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [SYSTEM, {"role": "user", "content": text}], "max_tokens": 1, **more}


async def send(gateway: Running, body: dict[str, Any], path: str = CHAT) -> Settled:
    before = len(gateway.lines)
    (await gateway.client.post(path, json=body)).raise_for_status()
    await eventually(lambda: len(gateway.lines) > before, "it is settled")
    return gateway.lines[-1]


def asked(engine: EngineServer, path: str = "/tokenize") -> int:
    return sum(received.path == path for received in engine.received)


async def state(gateway: Running) -> str:
    return str((await gateway.client.get("/readyz")).json()["models"]["sim"]["tokens"])


async def count(gateway: Running, result: str) -> float:
    prefix = f'kvgate_prompts_asked_total{{model="sim",result="{result}"}} '
    return sum(float(line[len(prefix) :]) for line in (await gateway.metrics()).splitlines() if line.startswith(prefix))


async def test_they_are_exact(engine: EngineServer, tokenizer: Path) -> None:
    async with gateway_of(tokenizer, engine) as gateway:
        assert await state(gateway) == FORESEEN
        expected = []
        for text in ("What is the weather?", "What is the weather?", "And tomorrow?"):
            line = await send(gateway, chat(text))
            assert line.exact
            assert line.prompt_tokens == line.reported_prompt_tokens
            assert line.expected_hit == line.cached_tokens
            expected.append(line.expected_hit)
        assert 0 == expected[0] < expected[2] <= expected[1]
        assert asked(engine) == 2, "the same body is asked for once"
        assert asked(engine, RENDER) == 1, "a route that is not there is asked for once"
        assert [await count(gateway, result) for result in ("asked", "remembered")] == [2, 1]
        assert await state(gateway) == "exact"
        assert 'kvgate_token_parity{model="sim"} 1.0' in await gateway.metrics()


async def test_texts_are_not_asked_for(engine: EngineServer, tokenizer: Path) -> None:
    async with gateway_of(tokenizer, engine) as gateway:
        line = await send(gateway, {"model": "sim", "prompt": "Hello there", "max_tokens": 1}, "/v1/completions")
        assert line.exact
        assert asked(engine) == 0


async def test_where_it_is_switched_off_chats_are_estimated(engine: EngineServer, tokenizer: Path) -> None:
    async with gateway_of(tokenizer, engine, ask=False) as gateway:
        assert await state(gateway) == (
            "exact but for chats, which are estimated, DeepSeek V3.2 is rendered by code of vLLM's own"
        )
        assert not (await send(gateway, chat())).exact
        assert asked(engine) == 0
        assert (await state(gateway)).startswith("estimated, renderer (DeepSeek V3.2 is rendered by code")
        metrics = await gateway.metrics()
        assert 'kvgate_token_parity{model="sim"} 0.0' in metrics
        assert 'kvgate_prompts_exact_ratio{model="sim"} 0.0' in metrics


@pytest.mark.parametrize(
    "more",
    [{"reasoning_effort": "low"}, {"documents": [{"text": "a"}]}, {"truncate_prompt_tokens": 5}],
    ids=["effort", "documents", "truncated"],
)
async def test_what_tokenize_does_not_know_is_estimated(
    engine: EngineServer, tokenizer: Path, more: dict[str, Any]
) -> None:
    async with gateway_of(tokenizer, engine) as gateway:
        assert not (await send(gateway, chat(**more))).exact
        assert asked(engine) == 0
        assert await state(gateway) != "exact"


async def test_an_engine_that_does_not_answer_costs_the_timeout_once(
    engine: EngineServer, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = asyncio.Event()

    async def hang(connection: Connection) -> None:
        await silent.wait()

    async with gateway_of(tokenizer, engine, ask_timeout=0.05) as gateway, ScriptedServer(hang) as server:
        endpoint = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)[0]
        leg = PromptQuestions._leg

        def elsewhere(*given: Any, **more: Any) -> Any:
            made = leg(*given, **more)
            return replace(made, address=replace(made.address, port=server.port))

        monkeypatch.setattr(PromptQuestions, "_leg", elsewhere)
        assert not (await send(gateway, chat("one"))).exact
        assert not (await send(gateway, chat("two"))).exact
        assert not (await send(gateway, chat("three"))).exact
        silent.set()
        assert await count(gateway, "timeout") == 2, "one for each route"
        assert await count(gateway, "no-route") == 1, "it rests"
        assert endpoint.engine.up, "it is no sicker for it"


async def test_what_was_told_of_earlier_turns_is_known_where_no_engine_tells(
    engine: EngineServer, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_of(tokenizer, engine) as gateway:
        body = chat("What is the weather in Paris, and in Rome? " * 5)
        first = await send(gateway, body)
        await gateway.heard(engine)
        monkeypatch.setattr(PromptQuestions, "_choose", lambda *_: None)
        turns = [{"role": "assistant", "content": "It is sunny."}, {"role": "user", "content": "And tomorrow?"}]
        line = await send(gateway, {**body, "messages": [*body["messages"], *turns]})
        assert not line.exact
        assert line.match_source == "events"
        assert first.prompt_tokens - 64 < line.expected_hit <= (line.cached_tokens or 0)
        assert "untold" in await state(gateway)
        assert 'kvgate_prompts_estimated_total{model="sim",reason="untold"} 1.0' in await gateway.metrics()


async def test_engines_that_do_otherwise_than_they_tell_are_noticed(engine: EngineServer, tokenizer: Path) -> None:
    async with gateway_of(tokenizer, engine) as gateway:
        parity = gateway.gateway.directory.runtimes[0].tokens.parity
        name = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)[0].name
        for _ in range(LEAST):
            parity.compare_counts(name, Form.CHAT, 1, 2)
        line = await send(gateway, chat())
        assert not line.exact
        assert (await state(gateway)).startswith("estimated, chats: most of its engines differ")
        for number in range(RECOVERY + 1):
            await send(gateway, chat(f"again {number}"))
        assert gateway.lines[-1].exact, "what is asked is compared on, and trust comes back"


async def test_a_client_that_leaves_costs_others_nothing(engine: EngineServer, tokenizer: Path) -> None:
    async with gateway_of(tokenizer, engine) as gateway:
        leaving = asyncio.ensure_future(gateway.client.post(CHAT, json=chat("both")))
        staying = asyncio.ensure_future(gateway.client.post(CHAT, json=chat("both")))
        await eventually(lambda: gateway.gateway.directory.runtimes[0].admission.in_flight > 0, "one is there")
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
            await leaving
        assert (await staying).status_code == 200
        await eventually(gateway.idle, "all is given back")
        assert not gateway.gateway.rooms.questions.asking
