"""Clients that stop, go and hurry, in front of a real engine: it computes for none that has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.processes import wait_for
from tests.engines.engine import Engine
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.support.chat import DONE
from tests.support.wire import raw_client, raw_post

COMPLETIONS = "/v1/completions"
LONG = 3000
"""Tokens: seconds on a CPU."""


@pytest.fixture(scope="module")
def gateway(started_engines: list[Engine], model_folder: Path, run_folder: Path) -> Iterator[Gateway]:
    """In front of one engine, whose running requests can be told."""
    endpoints = [{"url": started_engines[0].url, "name": started_engines[0].name}]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}) as gateway:
        yield gateway


def asking(tokens: int, **more: Any) -> bytes:
    body = {"model": MODEL, "prompt": "The weather", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}
    return raw_post(json.dumps(body).encode(), path=COMPLETIONS)


def running(engine: Engine) -> float:
    return engine.metrics()["vllm:num_requests_running"]


async def test_a_client_that_resets_in_a_stream_frees_the_engine(gateway: Gateway, engine: Engine) -> None:
    before = engine.metrics()["vllm:generation_tokens_total"]
    async with raw_client(gateway.url) as client:
        await client.say(asking(LONG, stream=True) * 2)
        await client.reader.readuntil(b"data: {")
        client.reset()
    await asyncio.sleep(0)  # in which the connection is closed
    wait_for(lambda: running(engine) == 0, "the engine to have nothing to do", gateway.process)
    assert engine.metrics()["vllm:generation_tokens_total"] - before < LONG, "nor was what was asked behind it begun"
    assert wait_for(gateway.requests, "the request's line", gateway.process)[-1]["outcome"] == "cancelled"


async def test_a_slow_client_gets_what_a_quick_one_gets(gateway: Gateway) -> None:
    texts = []
    for size in (1, 65536):
        async with raw_client(gateway.url, takes=4096) as client:
            await client.say(asking(20, stream=True))
            said = b""
            while DONE not in said:
                data = await client.reader.read(size)
                assert data
                said += data
        events = [line for line in said.split(b"\n") if line.startswith(b"data: {")]
        texts.append("".join(json.loads(event[6:])["choices"][0]["text"] for event in events))
    assert texts[0] == texts[1]


async def test_requests_that_come_at_once_are_answered_in_their_order(gateway: Gateway) -> None:
    async with raw_client(gateway.url) as client:
        await client.say(asking(8) + asking(9, stream=True) + asking(10))
        first, second, third = [await client.reply() for _ in range(3)]
    assert [reply.status for reply in (first, second, third)] == [200, 200, 200]
    assert [reply.framing for reply in (first, second, third)] == ["length", "chunked", "length"]
    assert [json.loads(reply.body)["usage"]["completion_tokens"] for reply in (first, third)] == [8, 10]
    assert second.body.endswith(DONE)
