"""Covers: gateway/proxy/serving/learning.py, gateway/tokens/parity.py.

One engine of three that counts other tokens: it costs itself its exactness, and the other two nothing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.observer import Settled
from gateway.tokens.agreement import LEAST
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.engines import each_simulated
from tests.support.gateway import IN_TURN, Running, config_for, running
from tests.support.wait import eventually

CHAT: dict[str, Any] = {
    "model": "sim",
    "messages": [{"role": "user", "content": "What is the weather in Paris today, and in Rome? " * 8}],
    "max_tokens": 1,
}
ENGINES = 3
LIAR = 1


@pytest.fixture
async def engines(folders: tuple[Path, Path]) -> AsyncIterator[list[EngineServer]]:
    settings = [EngineSettings(tokenizer=str(folders[number == LIAR]), seed=number) for number in range(ENGINES)]
    async with each_simulated(*settings) as servers:
        yield servers


@pytest.fixture
async def gateway(engines: list[EngineServer], folders: tuple[Path, Path]) -> AsyncIterator[Running]:
    """It asks the three in turn."""
    config = config_for(*(one.url for one in engines), tokenizer=str(folders[0]), **IN_TURN)
    async with running(config) as started:
        await started.heard(*engines)
        yield started


async def ask(gateway: Running, times: int = 1) -> list[Settled]:
    before = len(gateway.lines)
    for _ in range(times):
        (await gateway.client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
    await eventually(lambda: len(gateway.lines) == before + times, "all are settled")
    return gateway.lines[before:]


async def test_one_liar(gateway: Running, engines: list[EngineServer], caplog: pytest.LogCaptureFixture) -> None:
    name = engines[LIAR].url.removeprefix("http://")
    with caplog.at_level(logging.WARNING, "kvgate.parity"):
        await ask(gateway, ENGINES * (LEAST + 1))
    (record,) = caplog.records
    assert name in record.message
    assert "exact on the others" in record.message

    lines = await ask(gateway, 2 * ENGINES)
    assert {line.exact for line in lines if line.endpoint != name} == {True}
    assert {line.exact for line in lines if line.endpoint == name} == {False}
    others = [line for line in lines if line.endpoint != name]
    assert len(others) == 2 * (ENGINES - 1)
    assert all(line.match_source == "events" and line.expected_hit == line.cached_tokens for line in others)

    (liars, *_, last) = [line for line in lines if line.endpoint == name]
    assert liars.match_source == "none" or liars.match_source == "estimated"
    assert last.match_source == "estimated", "what was sent there is there"

    model = (await gateway.client.get("/readyz")).json()["models"]["sim"]
    assert list(model["differing"]) == [name]
    assert "counted other tokens in 5 of 5 chats" in model["differing"][name]
    metrics = await gateway.metrics()
    assert f'kvgate_endpoint_token_parity{{endpoint="{name}",model="sim"}} 0.0' in metrics
    assert 'kvgate_token_parity{model="sim"} 1.0' in metrics
    assert "kvgate_prompts_estimated_total{" not in metrics, "none was estimated as a whole"


async def test_most_of_them_are_the_model(engines: list[EngineServer], folders: tuple[Path, Path]) -> None:
    """Our tokenizer is the liar's: two of three differ."""
    config = config_for(*(one.url for one in engines), tokenizer=str(folders[1]), **IN_TURN)
    async with running(config) as gateway:
        await ask(gateway, ENGINES * (LEAST + 1))
        (line,) = await ask(gateway)
        assert not line.exact
        model = (await gateway.client.get("/readyz")).json()["models"]["sim"]
        assert model["tokens"].startswith("estimated, chats: most of its engines differ")
        assert len(model["differing"]) == 2
        assert 'kvgate_token_parity{model="sim"} 0.0' in await gateway.metrics()
