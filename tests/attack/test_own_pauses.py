"""A gateway that is stopped and goes on: SIGSTOP, as a machine that is suspended or moved looks from outside."""

from __future__ import annotations

import asyncio

import pytest

from tests.attack.crowd import Crowd, crowd
from tests.attack.engines import drips, failing, in_every
from tests.attack.gateway import attacked
from tests.support.chat import STREAMED
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually

IDLE = 1.0
PAUSE = 3.5 * IDLE
STREAMS = 100


@pytest.mark.parametrize("words", [10, 200], ids=["engines end meanwhile", "engines go on"])
async def test_it_is_stopped_amid_streams(tmp_path, words):
    """[stopped_itself] For longer than ``timeouts.idle`` and a scrape may take: no stream breaks, no engine is blamed,
    and nobody is refused afterwards."""

    def engine() -> ScriptedEngine:
        return ScriptedEngine(failing(in_every(1, drips(words, 0.03))))

    async with engine() as first, engine() as second:
        timeouts = {"idle": IDLE, "connect": IDLE, "head": 5, "total": 600}
        async with attacked(tmp_path, first.url, second.url, timeouts=timeouts) as gateway:
            asking = asyncio.create_task(
                crowd(gateway.url, requests=STREAMS, clients=STREAMS, body=lambda number: STREAMED)
            )
            await eventually(lambda: first.under_way + second.under_way == STREAMS, "all streams run")
            await gateway.paused(PAUSE)
            result: Crowd = await asking
            assert result.ended == {"ok": STREAMS}
            after = await crowd(gateway.url, requests=50, clients=50, body=lambda number: STREAMED)
            assert after.ended == {"ok": 50}
            assert not gateway.logged("is down"), gateway.logged("is down")
            await gateway.settled()
            gateway.unharmed()


async def test_it_is_stopped_while_nothing_runs(tmp_path):
    """[stopped_itself] With scrapes under way, several times."""
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        fleet = {"scrape": {"interval": 0.05, "timeout": 0.5}}
        async with attacked(tmp_path, first.url, second.url, fleet=fleet) as gateway:
            for _ in range(4):
                await gateway.paused(0.8)
                result = await crowd(gateway.url, requests=20, clients=20)
                assert result.ended == {"ok": 20}
            assert not gateway.logged("is down"), gateway.logged("is down")
            gateway.unharmed()
