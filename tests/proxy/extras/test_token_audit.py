"""Covers: gateway/proxy/extras/token_audit.py, gateway/proxy/extras/token_routes.py.

Parity on live traffic: a gateway whose tokenizer is another than its engines', and one that asks for their ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.agreement import LEAST, RECOVERY, Form
from gateway.tokens.settings import ParitySettings
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.engines import simulated
from tests.support.gateway import Running, config_for, running
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

CHAT: dict[str, Any] = {
    "model": "sim",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "max_tokens": 1,
}
EVERY = ParitySettings(sample=1.0)
RENDER = "/v1/chat/completions/render"


@pytest.fixture
async def engine(folders: tuple[Path, Path]):
    async with simulated(tokenizer=str(folders[0])) as server:
        yield server


async def ask(gateway: Running, body: dict[str, Any] = CHAT, times: int = 1, path: str = "chat/completions") -> None:
    for _ in range(times):
        (await gateway.client.post(f"/v1/{path}", json=body)).raise_for_status()


async def tokens(gateway: Running) -> str:
    readiness = (await gateway.client.get("/readyz")).json()
    return str(readiness["models"]["sim"]["tokens"])


def asked(engine: EngineServer, path: str) -> int:
    return sum(received.path == path for received in engine.received)


async def test_the_same_tokenizer_is_trusted(engine: EngineServer, folders: tuple[Path, Path]) -> None:
    async with running(config_for(engine.url, tokenizer=str(folders[0]))) as gateway:
        await ask(gateway, times=2 * LEAST)
        assert await tokens(gateway) == "exact"
        assert 'kvgate_token_parity{model="sim"} 1.0' in await gateway.metrics()
        assert asked(engine, "/tokenize") == 0, "no engine is asked without a sample"


async def test_another_tokenizer_is_noticed(engine: EngineServer, folders: tuple[Path, Path]) -> None:
    async with running(config_for(engine.url, tokenizer=str(folders[1]))) as gateway:
        await ask(gateway, times=LEAST)
        await eventually(lambda: len(gateway.lines) == LEAST, "all are settled")
        assert all(line.exact for line in gateway.lines)
        await ask(gateway)
        await eventually(lambda: len(gateway.lines) == LEAST + 1, "it is settled")
        assert not gateway.lines[-1].exact
        assert "it counted other tokens" in await tokens(gateway)
        metrics = await gateway.metrics()
        assert 'kvgate_token_parity{model="sim"} 0.0' in metrics
        assert 'kvgate_prompts_estimated_total{model="sim",reason="parity"} 1.0' in metrics
        ready = await gateway.client.get("/readyz")
        assert ready.status_code == 200, "estimates serve"


async def test_it_comes_back_by_itself(engine: EngineServer, folders: tuple[Path, Path]) -> None:
    """The engines are set right, or were replaced."""
    async with running(config_for(engine.url, tokenizer=str(folders[0]))) as gateway:
        parity = gateway.gateway.directory.runtimes[0].tokens.parity
        for _ in range(LEAST):
            parity.compare_counts("elsewhere", Form.CHAT, 1, 2)
        await ask(gateway, times=RECOVERY)
        assert await tokens(gateway) == "exact"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"model": "sim", "prompt": ["Hello there", "Hello"], "max_tokens": 1}),
        ("completions", {"model": "sim", "prompt": [5, 6, 7], "max_tokens": 1}),
        ("chat/completions", {**CHAT, "n": 2}),
    ],
    ids=["several prompts", "the client's ids", "several choices"],
)
async def test_what_may_differ_is_no_evidence(
    engine: EngineServer, folders: tuple[Path, Path], path: str, body: dict[str, Any]
) -> None:
    async with running(config_for(engine.url, tokenizer=str(folders[1]), parity=EVERY)) as gateway:
        await ask(gateway, body, times=2 * LEAST, path=path)
        assert await tokens(gateway) == "exact"
        assert asked(engine, "/tokenize") == 0


async def test_a_sample_of_ids_is_compared(engine: EngineServer, folders: tuple[Path, Path]) -> None:
    async with running(config_for(engine.url, tokenizer=str(folders[0]), parity=EVERY)) as gateway:
        await ask(gateway)
        await eventually(lambda: asked(engine, "/tokenize") == 1, "the engine was asked")
        await ask(gateway, {"model": "sim", "prompt": "Hello there", "max_tokens": 1}, path="completions")
        await eventually(lambda: asked(engine, "/tokenize") == 2, "the engine was asked again")
        await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "both are compared")
        metrics = await gateway.metrics()
        assert 'kvgate_token_ids_compared_total{model="sim"} 2.0' in metrics
        assert 'kvgate_token_id_mismatches_total{model="sim"} 0.0' in metrics
        assert asked(engine, "/v1/chat/completions/render") == 1
        await ask(gateway)
        await eventually(lambda: asked(engine, "/tokenize") == 3, "the engine was asked again")
        assert asked(engine, "/v1/chat/completions/render") == 1, "a route that is not there is asked for once"


async def test_ids_that_differ_in_no_count_are_noticed(engine: EngineServer, folders: tuple[Path, Path]) -> None:
    """A template whose text is another of the same length."""
    template = folders[0].parent / "template.jinja"
    template.write_text((folders[0] / "chat_template.jinja").read_text().replace("assistant\\n", "assistant "))
    config = config_for(engine.url, tokenizer=str(folders[0]), chat_template=str(template), parity=EVERY)
    async with running(config) as gateway:
        for count in range(1, LEAST + 1):
            await ask(gateway)
            await eventually(lambda n=count: asked(engine, "/tokenize") == n, "the engine was asked")
            await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "the ids are compared")
        assert "it made other token ids" in await tokens(gateway)
        assert 'kvgate_token_count_mismatches_total{model="sim"} 0.0' in await gateway.metrics()


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_effort": "low"},
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}, *CHAT["messages"]]},
    ],
    ids=["a field", "a message's field"],
)
async def test_what_tokenize_does_not_know_is_left_alone(
    engine: EngineServer, folders: tuple[Path, Path], more: dict[str, Any]
) -> None:
    async with running(config_for(engine.url, tokenizer=str(folders[0]), parity=EVERY)) as gateway:
        await ask(gateway, {**CHAT, **more})
        await eventually(lambda: asked(engine, "/v1/chat/completions/render") == 1, "the engine was asked")
        await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "it has answered")
        assert asked(engine, "/tokenize") == 0


async def test_an_engine_that_does_not_answer_costs_nobody_anything(
    engine: EngineServer, folders: tuple[Path, Path]
) -> None:
    engine.faults.inject("hang", path="/v1/chat/completions/render")
    async with running(config_for(engine.url, tokenizer=str(folders[0]), parity=EVERY)) as gateway:
        await ask(gateway, times=3)
        await eventually(lambda: asked(engine, "/v1/chat/completions/render") == 1, "the engine was asked")
        assert gateway.idle()
        assert gateway.gateway.rooms.token_audit.busy == {"sim"}, "one question at a time"


async def test_what_renders_otherwise_than_it_is_served_is_no_evidence(folders: tuple[Path, Path]) -> None:
    """vLLM's /v1/messages/render does not look which effort the template knows for not thinking."""
    body = {"model": "sim", "messages": CHAT["messages"], "max_tokens": 1}
    path, render = "messages", "/v1/messages/render"
    async with simulated(tokenizer=str(folders[0]), scale_out=True) as engine:
        async with running(config_for(engine.url, tokenizer=str(folders[0]), parity=EVERY)) as gateway:
            await ask(gateway, {**body, "thinking": {"type": "disabled"}}, path=path)
            await ask(gateway, {**body, "thinking": {"type": "adaptive"}}, path=path)
            await eventually(lambda: asked(engine, render) == 1, "the engine was asked")
            await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "it is compared")
            await ask(gateway, body, path=path)
            await eventually(lambda: asked(engine, render) == 2, "the engine was asked again")
            assert await tokens(gateway) == "exact"
            told = [received.body for received in engine.received if received.path == render]
            assert not any(b"disabled" in one for one in told)


async def test_a_route_that_is_not_there_is_asked_for_again_when_its_engine_is_another_process(
    folders: tuple[Path, Path],
) -> None:
    first = EngineServer(EngineSettings(tokenizer=str(folders[0])))
    await first.start(port=free_in_a_row())
    again = EngineServer(EngineSettings(tokenizer=str(folders[0]), scale_out=True))
    async with running(config_for(first.url, tokenizer=str(folders[0]), parity=EVERY)) as gateway:
        (endpoint,) = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)
        await ask(gateway)
        await eventually(lambda: asked(first, "/tokenize") == 1, "what is there is asked for instead")
        await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "it is compared")
        started = endpoint.engine.started
        await first.kill()
        await again.start(port=first.port)
        try:
            await eventually(lambda: endpoint.engine.started not in (None, started), "the restart is noticed")
            await eventually(lambda: endpoint.engine.up, "it is up again")
            await ask(gateway)
            await eventually(lambda: asked(again, RENDER) == 1, "the new one is asked")
        finally:
            await again.close()


async def test_a_route_that_is_not_there_is_asked_for_again_after_a_while(
    engine: EngineServer, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.extras.token_audit.ABSENCE", 0.0)
    async with running(config_for(engine.url, tokenizer=str(folders[0]), parity=EVERY)) as gateway:
        for count in (1, 2):
            await ask(gateway)
            await eventually(lambda n=count: asked(engine, RENDER) == n, "it is asked for")
            await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "the ids are compared")
