"""Chats with images, whose tokens an engine tells: what is expected to be cached is what the engine then finds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.core.observer import Settled
from gateway.tokens.settings import MediaSettings
from simulator.server import EngineServer
from tests.support.engines import simulated
from tests.support.gateway import Running, config_for, running
from tests.support.wait import eventually

TOKENS = 100
ASKED = MediaSettings(render=True)
RENDER = "/v1/chat/completions/render"


@pytest.fixture
async def engine() -> AsyncIterator[EngineServer]:
    async with simulated(scale_out=True, image_tokens=TOKENS, adapters=("lora",)) as server:
        yield server


@contextlib.asynccontextmanager
async def gateway_of(*engines: EngineServer, media: MediaSettings = ASKED) -> AsyncIterator[Running]:
    async with running(config_for(*(engine.url for engine in engines), media=media)) as gateway:
        assert await gateway.gateway.feed.synced(10)
        yield gateway


def image(name: str = "a") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"http://images/{name}.png"}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    system = {"role": "system", "content": "You look at pictures. " * 5}
    return {"model": "sim", "messages": [system, *messages], "max_tokens": 1, **more}


async def send(gateway: Running, body: dict[str, Any], path: str = "/v1/chat/completions") -> Settled:
    """One request, whose expected hit must be the engine's."""
    before = len(gateway.lines)
    response = await gateway.client.post(path, json=body)
    response.raise_for_status()
    await eventually(lambda: len(gateway.lines) > before, "it is settled")
    line = gateway.lines[-1]
    assert line.exact
    assert line.prompt_tokens == line.reported_prompt_tokens
    assert line.expected_hit == line.cached_tokens
    return line


def asked(engine: EngineServer, path: str = RENDER) -> int:
    return sum(received.path == path for received in engine.received)


async def count(gateway: Running, result: str) -> float:
    prefix = f'kvgate_media_renders_total{{model="sim",result="{result}"}} '
    return sum(float(line[len(prefix) :]) for line in (await gateway.metrics()).splitlines() if line.startswith(prefix))


async def test_an_image_is_matched_and_another_is_not(engine: EngineServer) -> None:
    async with gateway_of(engine) as gateway:
        first = await send(gateway, chat(user(image(), text("what is it?"))))
        again = await send(gateway, chat(user(image(), text("what is it?"))))
        other = await send(gateway, chat(user(image("b"), text("what is it?"))))
        assert first.expected_hit == 0
        assert again.expected_hit == (again.prompt_tokens - 1) // 16 * 16
        assert other.expected_hit == (again.prompt_tokens - TOKENS - len("\nwhat is it?\n")) // 16 * 16 - 16
        assert asked(engine) == 2, "the same body is asked for once"
        assert [await count(gateway, result) for result in ("asked", "remembered")] == [2, 1]


async def test_a_conversation_goes_on_behind_its_images(engine: EngineServer) -> None:
    async with gateway_of(engine) as gateway:
        messages = [user(image(), text("what is it?"))]
        expected = []
        for turn in range(4):
            line = await send(gateway, chat(*messages))
            expected.append(line.expected_hit)
            more = [image(f"turn {turn}")] if turn == 1 else []
            messages += [{"role": "assistant", "content": "it is " + "so " * 20}, user(text("and?"), *more)]
        assert expected == sorted(expected)
        assert expected[1] > TOKENS
        assert expected[3] > 2 * TOKENS


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": [user({"type": "input_image", "image_url": "http://x", "detail": "auto"})]}),
        (
            "/v1/messages",
            {"messages": [user({"type": "image", "source": {"type": "url", "url": "http://x"}})], "max_tokens": 1},
        ),
        ("/v1/chat/completions", chat(user(image(), text("hm")), cache_salt="s")),
        ("/v1/chat/completions", chat(user(image(), text("hm")), model="lora")),
    ],
)
async def test_other_routes_salts_and_adapters(engine: EngineServer, path: str, body: dict[str, Any]) -> None:
    async with gateway_of(engine) as gateway:
        body = {"model": "sim", **body}
        assert (await send(gateway, body, path)).expected_hit == 0
        assert (await send(gateway, body, path)).expected_hit >= TOKENS
        assert asked(engine, f"{path}/render") == 1


async def test_a_late_gateway_learns_what_is_held(engine: EngineServer) -> None:
    body = chat(user(image(), text("what is it?")))
    async with gateway_of(engine) as gateway:
        await send(gateway, body)
    async with gateway_of(engine) as gateway:
        assert (await send(gateway, body)).expected_hit > TOKENS


async def test_an_engine_renders_without_its_images(engine: EngineServer) -> None:
    async with gateway_of(engine) as gateway:
        await send(gateway, chat(user(image())))
        (asked_for,) = [received for received in engine.received if received.path == RENDER]
        assert b'"mm_payload":"none"' in asked_for.body
        (served,) = [received for received in engine.received if received.path == "/v1/chat/completions"]
        assert b"mm_payload" not in served.body


async def test_it_is_asked_only_where_that_is_configured(engine: EngineServer) -> None:
    async with gateway_of(engine, media=MediaSettings()) as gateway:
        await post(gateway, chat(user(image())))
        assert asked(engine) == 0
    async with gateway_of(engine) as gateway:
        await post(gateway, chat(user(text("no image"))))
        assert asked(engine) == 0


async def post(gateway: Running, body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
    return (await gateway.client.post(path, json=body)).raise_for_status()


async def test_a_body_that_renders_otherwise_than_it_is_served_is_not_asked_for(engine: EngineServer) -> None:
    body = {
        "model": "sim",
        "max_tokens": 1,
        "messages": [user({"type": "image", "source": {"type": "url", "url": "http://x"}})],
    }
    async with gateway_of(engine) as gateway:
        await post(gateway, body | {"thinking": {"type": "disabled"}}, "/v1/messages")
        assert asked(engine, "/v1/messages/render") == 0


async def test_many_of_the_same_ask_once_and_each_gets_the_answer() -> None:
    async with simulated(scale_out=True, image_tokens=TOKENS, render_seconds=0.3) as engine:
        async with gateway_of(engine) as gateway:
            body = chat(user(image()))
            leaving = asyncio.ensure_future(post(gateway, body))
            await eventually(lambda: asked(engine) == 1, "the first has asked")
            others = [asyncio.ensure_future(post(gateway, body)) for _ in range(4)]
            leaving.cancel()
            await asyncio.gather(*others)
            assert asked(engine) == 1
            await eventually(lambda: len(gateway.lines) == 5, "all are settled")
            assert sum(line.exact for line in gateway.lines) == 4


async def test_a_slow_engine_is_not_waited_for() -> None:
    async with simulated(scale_out=True, image_tokens=TOKENS, render_seconds=60.0) as engine:
        async with gateway_of(engine, media=MediaSettings(render=True, timeout=0.5)) as gateway:
            await post(gateway, chat(user(image())))
            await post(gateway, chat(user(image())))
            assert asked(engine) == 1, "it is left alone for a while"
            assert [await count(gateway, result) for result in ("timeout", "no-route")] == [1, 1]
            assert not gateway.down(engine.url)


async def test_more_than_a_few_at_a_time_wait_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.extras.prompt_questions.MEDIA_QUESTIONS", 1)
    async with simulated(scale_out=True, image_tokens=TOKENS, render_seconds=60.0) as engine:
        async with gateway_of(engine, media=MediaSettings(render=True, timeout=0.5)) as gateway:
            await asyncio.gather(*(post(gateway, chat(user(image(str(number))))) for number in range(3)))
            assert asked(engine) == 1
            assert await count(gateway, "timeout") == 1
            assert await count(gateway, "busy") + await count(gateway, "no-route") == 2


async def test_another_engine_is_asked_where_one_cannot(engine: EngineServer) -> None:
    async with simulated(image_tokens=TOKENS) as plain:
        async with gateway_of(plain, engine) as gateway:
            for number in range(4):
                await post(gateway, chat(user(image(str(number)))))
            assert asked(plain) <= 1
            assert asked(engine) >= 3


async def test_of_an_engine_that_is_gone_nothing_is_remembered(engine: EngineServer) -> None:
    async with simulated(image_tokens=TOKENS) as plain:
        async with gateway_of(plain) as gateway:
            await post(gateway, chat(user(image())))
            rests = gateway.gateway.rooms.questions.rests
            assert len(rests) == 1, "it cannot tell"
            assert (await gateway.reload(config_for(engine.url, media=ASKED))).is_success
            assert gateway.gateway.rooms.questions.rests is rests
            await eventually(lambda: (gc.collect(), len(rests))[1] == 0, "it is forgotten")


async def test_a_body_that_is_refused_is_the_clients_fault(engine: EngineServer) -> None:
    engine.faults.inject("status", path=RENDER, status=400, body="{}", times=1)
    async with gateway_of(engine) as gateway:
        await post(gateway, chat(user(image())))
        assert await count(gateway, "refused") == 1
        await gateway.heard(engine)  # an estimated prompt predicts nothing: its blocks are known by their events
        await send(gateway, chat(user(image("b"))))


@pytest.mark.parametrize("kind", ["drop", "garbage"])
async def test_an_engine_that_breaks_off_is_no_sicker_for_it(engine: EngineServer, kind: str) -> None:
    engine.faults.inject(kind, path=RENDER, times=1)
    async with gateway_of(engine) as gateway:
        await post(gateway, chat(user(image())))
        assert await count(gateway, "failed") == 1
        assert not gateway.down(engine.url)


async def test_embeddings_are_not_asked_for(engine: EngineServer) -> None:
    async with gateway_of(engine) as gateway:
        await gateway.client.post(
            "/v1/chat/completions", json=chat(user(image(), {"type": "prompt_embeds", "prompt_embeds": "AAAA"}))
        )
        assert asked(engine) == 0
