"""Clients that leave, read nothing, or say little: nothing of them is left behind."""

from __future__ import annotations

import orjson

from tests.attack.crowd import crowd
from tests.attack.engines import RawEngine, hangs, raw
from tests.attack.gateway import MIB, attacked
from tests.support.chat import STREAMED
from tests.support.wait import eventually
from tests.support.wire import raw_client, raw_post

ASK = raw_post(orjson.dumps(STREAMED))


async def test_clients_that_leave(tmp_path):
    """[leaving] While they wait for a head: each engine sees it, and nothing stays booked or open."""
    async with raw(RawEngine(chooses=lambda number: hangs)) as engine:
        async with attacked(tmp_path, engine.url) as gateway:
            before = gateway.descriptors()
            for _ in range(50):
                async with raw_client(gateway.url) as client:
                    await client.say(ASK)
                    asked = engine.asked
                    await eventually(lambda asked=asked: engine.asked > asked or engine.under_way)
            await eventually(lambda: engine.under_way == 0, "the engine has seen all of them leave")
            await gateway.settled()
            await eventually(lambda: gateway.descriptors() <= before + 2, "their descriptors are given back")
            gateway.unharmed()
            assert await gateway.stop() == 0


async def test_a_quiet_crowd(tmp_path):
    """[all well] Engines that fail nothing: every request is answered, memory and descriptors come back."""
    async with raw() as first, raw() as second, attacked(tmp_path, first.url, second.url) as gateway:
        await crowd(gateway.url, requests=200, clients=50)
        memory, open_files = gateway.rss(), gateway.descriptors()
        result = await crowd(gateway.url, requests=2000, clients=50)
        assert result.ended == {"ok": 2000}
        await gateway.settled()
        assert gateway.rss() - memory < 30 * MIB
        await eventually(lambda: gateway.descriptors() <= open_files + 2)
        gateway.unharmed()
        assert await gateway.stop() == 0
