"""Engines that say what no engine says on their KV event sockets: it costs bounded memory, time and log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attack.crowd import crowd
from tests.attack.gateway import MIB, Attacked, attacked
from tests.kvcache.conftest import ScriptedPublisher, ids, payload, stored
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually

WIDE = 100 * MIB
"""A third of what such messages are together. Unbounded, 12 of 150 MB took 1.8 GB."""


@asynccontextmanager
async def heard(folder: Path, publisher: ScriptedPublisher, **changes: Any) -> AsyncIterator[Attacked]:
    """A gateway that hears ``publisher``, beside an engine in order."""
    async with ScriptedEngine() as engine, ScriptedEngine() as other:
        events = {"endpoint": publisher.address, "replay": publisher.replay}
        endpoints = [{"url": engine.url, "kv_events": events}, {"url": other.url}]
        async with attacked(folder, engine.url, other.url, model={"endpoints": endpoints}, **changes) as gateway:
            await publisher.subscribed()
            yield gateway
            assert (await crowd(gateway.url, requests=50, clients=5)).ended == {"ok": 50}
            gateway.unharmed()


@pytest.fixture
async def publisher() -> AsyncIterator[ScriptedPublisher]:
    one = ScriptedPublisher()
    await one.start()
    yield one
    await one.stop()


async def test_numbers_that_jump(tmp_path, publisher):
    """[log_flood] Back and forth, 2,000 times: some lines of log, and not one for every two."""
    async with heard(tmp_path, publisher) as gateway:
        for number in range(2000):
            jumps = 1_000_000 + number if number % 2 else number
            message = payload(stored([number], ids(number)))
            await publisher.send_frames(b"kv", jumps.to_bytes(8, "big"), message)
        await eventually(lambda: len(publisher.asked) > 200, "it is asked for what is missing", within=60)
        assert len(gateway.logged("")) < 60, gateway.process.tail()


@pytest.mark.parametrize("where", ["live", "replay"])
async def test_giant_messages(tmp_path, publisher, where):
    """[kv_giant_frames] Twelve of 30 MB: none of them is received."""
    giant = bytes(30 * MIB)
    if where == "replay":
        publisher.kept = dict.fromkeys(range(12), giant)
        publisher.next = 12
    async with heard(tmp_path, publisher) as gateway:
        before = gateway.rss()
        if where == "live":
            for number in range(12):
                await publisher.send_frames(b"kv", number.to_bytes(8, "big"), giant)
            await eventually(lambda: gateway.logged("closed for what came on it"), within=30)
        else:
            await eventually(lambda: gateway.logged("history cannot be read"), within=60)
        assert gateway.peak() - before < WIDE


async def test_a_replay_without_end(tmp_path, publisher):
    """[kv_giant_frames] It is given up, with its reason, and not asked for again at once; others are served then."""
    publisher.endless = payload(stored([1], ids(1)))
    async with heard(tmp_path, publisher) as gateway:
        before = gateway.rss()
        assert (await crowd(gateway.url, requests=200, clients=5)).ended == {"ok": 200}
        await eventually(lambda: gateway.logged("it has no end"), within=90)
        assert gateway.peak() - before < 4 * WIDE, "256 MB may wait to be applied"
        assert len(publisher.asked) <= 2
