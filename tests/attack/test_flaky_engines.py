"""Engines that break a part of their answers: a fleet that answers most requests is not taken out for the others."""

from __future__ import annotations

import contextlib

import pytest

from tests.attack.crowd import crowd
from tests.attack.engines import Fault, breaks_stream, closes, failing, floods_1xx, in_every
from tests.attack.gateway import attacked
from tests.support.chat import STREAMED
from tests.support.scripted_engine import ScriptedEngine


@pytest.mark.parametrize("fault", [breaks_stream, closes], ids=["after it began", "before it began"])
async def test_all_engines_break_one_in_ten(tmp_path, fault: Fault):
    """[ejects_all] Three engines, 400 clients at once: nobody is refused because the gateway has taken all engines out.
    Until 0.1 that were three quarters of the requests."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(ScriptedEngine(failing(in_every(10, fault), hold=0.02))) for _ in range(3)
        ]
        urls = [engine.url for engine in engines]
        gateway = await stack.enter_async_context(attacked(tmp_path, *urls, retries={"budget": 1}))
        result = await crowd(gateway.url, requests=2000, clients=400, body=lambda number: STREAMED)
        assert result.asked == 2000
        assert result.ended["503"] == 0, result
        assert result.ended["wrong"] == result.ended["cut"] == 0, result
        if fault is breaks_stream:
            assert result.ended["ok"] + result.ended["broken"] == 2000, result
            assert 150 < result.ended["broken"] < 250, result
        else:
            # Both attempts of one in a hundred meet the fault.
            assert result.ended["ok"] + result.ended["502"] == 2000, result
            assert result.ended["502"] < 60, result
        await gateway.settled()
        gateway.unharmed()


async def test_an_engine_that_breaks_all_is_taken_out(tmp_path):
    """[one sick] The guard on the other side: it fails fast, seems idle, and would attract every request."""
    async with contextlib.AsyncExitStack() as stack:
        sick = await stack.enter_async_context(ScriptedEngine(failing(in_every(1, breaks_stream))))
        good = [await stack.enter_async_context(ScriptedEngine(failing(hold=0.02))) for _ in range(2)]
        gateway = await stack.enter_async_context(attacked(tmp_path, sick.url, *(engine.url for engine in good)))
        result = await crowd(gateway.url, requests=2000, clients=50, body=lambda number: STREAMED)
        assert result.ended["ok"] + result.ended["broken"] == 2000, result
        assert result.ended["broken"] < 600, result
        assert gateway.logged("too many of its answers broke off")
        gateway.unharmed()


async def test_floods_of_informational_answers(tmp_path):
    """[1xx] Forty of them before each answer, on all engines."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine(failing(in_every(1, floods_1xx)))) for _ in range(3)]
        gateway = await stack.enter_async_context(attacked(tmp_path, *(engine.url for engine in engines)))
        result = await crowd(gateway.url, requests=1500, clients=100, body=lambda number: STREAMED)
        assert result.ended == {"ok": 1500}
        gateway.unharmed()
