"""Engines that connect to the gateway with their KV events, and those without history that are asked to tell of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, KvEventsSettings
from gateway.kvcache.settings import CacheSettings, IntakeSettings
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from simulator.tokenizer import build_tokenizer
from tests.support.gateway import Running, config_for, running
from tests.support.wait import eventually

CONNECTS = KvEventsSettings(connects=True)
LISTEN = IntakeSettings("tcp://127.0.0.1:0")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@contextlib.asynccontextmanager
async def engine(tokenizer: Path, **settings: Any) -> AsyncIterator[EngineServer]:
    server = EngineServer(EngineSettings(**{"tokenizer": str(tokenizer), "connector": "none", **settings}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def config(tokenizer: Path, *endpoints: EndpointSettings, **changes: Any) -> Config:
    return config_for(tokenizer=str(tokenizer), endpoints=endpoints, **changes)


def prompt(number: int, blocks: int = 20) -> str:
    return f"{number} " + " ".join(f"word{i % 7}" for i in range(blocks * 8))


async def ask(gateway: Running, text: str, **body: Any) -> None:
    answer = await gateway.client.post("/v1/completions", json={"model": "sim", "prompt": text, "max_tokens": 1, **body})
    assert answer.status_code == 200, answer.text


async def expected_and_reported(gateway: Running) -> tuple[int, int | None]:
    await eventually(gateway.idle, "it has settled")
    line = gateway.lines[-1]
    return line.expected_hit, line.cached_tokens


async def test_engines_that_connect_are_told_apart(tokenizer: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(engine(tokenizer))
        second = await stack.enter_async_context(engine(tokenizer))
        endpoints = [EndpointSettings(one.url, name=name, kv_events=CONNECTS) for one, name in ((first, "a"), (second, "b"))]
        gateway = await stack.enter_async_context(running(config(tokenizer, *endpoints, kv_events=LISTEN)))
        _ = gateway
