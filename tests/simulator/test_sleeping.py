"""Covers: simulator/driver.py, simulator/service.py, simulator/routes.py, simulator/exposition.py.

A simulated engine sleeps and wakes up, by vLLM's routes.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.fleet.scrape import read
from tests.simulator.conftest import Running, Start
from tests.support.wait import eventually

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "a prompt of some blocks " * 8}], "max_tokens": 2}


async def level(engine: Running) -> int | None:
    scrape = read((await engine.client.get("/metrics")).content)
    assert scrape is not None
    return scrape.sleep


@pytest.mark.parametrize("deep", [0, 1, 2])
async def test_it_sleeps_and_wakes_up(engine: Running, deep: int) -> None:
    assert (await engine.client.post(CHAT, json=BODY)).status_code == 200
    held = engine.server.cache.held
    assert held
    assert (await level(engine), (await engine.client.get("/is_sleeping")).json()) == (None, {"is_sleeping": False})
    assert (await engine.client.post(f"/sleep?level={deep}")).status_code == 200
    assert (await level(engine), (await engine.client.get("/is_sleeping")).json()) == (deep, {"is_sleeping": True})
    assert engine.server.cache.held == (held if deep == 0 else set())
    asked = asyncio.create_task(engine.client.post(CHAT, json=BODY))
    await eventually(lambda: engine.server.waiting == 1, "what comes waits")
    assert (await engine.client.post("/wake_up")).status_code == 200
    assert (await asked).status_code == 200
    assert await level(engine) is None


async def test_what_runs_is_ended_or_waited_for(start: Start) -> None:
    engine = await start(step_seconds=0.005)
    long = {**BODY, "max_tokens": 30, "ignore_eos": True}
    waited = asyncio.create_task(engine.client.post(CHAT, json=long))
    await eventually(lambda: engine.server.running == 1, "it runs")
    await engine.client.post("/sleep?mode=wait")
    assert (await waited).json()["choices"][0]["finish_reason"] == "length"
    await engine.client.post("/wake_up")
    ended = asyncio.create_task(engine.client.post(CHAT, json=long))
    await eventually(lambda: engine.server.running == 1, "it runs")
    await engine.client.post("/sleep")
    assert (await ended).json()["choices"][0]["finish_reason"] == "abort"
    assert engine.server.running == 0


async def test_only_levels_that_there_are(engine: Running) -> None:
    assert (await engine.client.post("/sleep?level=3")).status_code == 400
