"""Covers: gateway/core/pauses.py, gateway/proxy/upstream/deadlines.py.

A gateway that stood still, because it was stopped, suspended or moved: what came meanwhile is not late.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from gateway.core.pauses import LATE
from gateway.proxy.settings import TimeoutSettings
from tests.support.chat import CHAT, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import QUICK_FLEET, config_for, running
from tests.support.pause import stand_still
from tests.support.scripted_engine import ScriptedEngine
from tests.support.split import PREFILLED, pair
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, answer, chunked, raw_client, raw_post

# With SIGSTOP itself, which interrupts the waiting for sockets: tests/attack/test_own_pauses.py.
pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

PAUSE = 3 * LATE
"""A wait of LATE that ends with it is late by twice as much as is let pass."""
SHORT = TimeoutSettings(connect=LATE, head=LATE, idle=LATE, total=20, receive=LATE)


async def test_a_stream_whose_bytes_lay_in_the_socket_goes_on():
    going = asyncio.Event()

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        await going.wait()
        connection.writer.write(chunked(WORD, DONE))
        stand_still(PAUSE)

    async with ScriptedEngine(post) as server, running(config_for(server.url, timeouts=SHORT)) as gateway:
        async with gateway.client.stream("POST", "/v1/chat/completions", json=STREAMED) as reply:
            parts = reply.aiter_bytes()
            said = await anext(parts)
            going.set()
            said += b"".join([part async for part in parts])
        assert said == ROLE + WORD + WORD + DONE
        assert [line.outcome for line in gateway.lines] == ["ok"]


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
async def test_a_head_that_lay_in_the_socket_is_in_time(body):
    async def post(connection: Connection, head: bytes, request: bytes) -> None:
        said = STREAM_HEAD + chunked(ROLE, WORD, DONE) if body is STREAMED else answer(b'{"choices":[]}')
        connection.writer.write(said)
        stand_still(PAUSE)

    async with ScriptedEngine(post) as server, running(config_for(server.url, timeouts=SHORT)) as gateway:
        assert (await gateway.client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_an_engine_that_is_idle_after_our_pause_as_well_is_given_up(monkeypatch):
    monkeypatch.setattr("gateway.proxy.upstream.deadlines.TURN", 0.05)

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        stand_still(PAUSE)
        await connection.gone()

    async with ScriptedEngine(post) as server, running(config_for(server.url, timeouts=SHORT)) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        assert b"idle-timeout" in reply.content


async def test_a_scrape_that_we_made_late_is_no_failure():
    fleet = replace(QUICK_FLEET, scrape=replace(QUICK_FLEET.scrape, timeout=LATE))

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        raise AssertionError("nobody asks")

    async with ScriptedEngine(post) as first, ScriptedEngine(post) as second:
        async with running(config_for(first.url, second.url, fleet=fleet)) as gateway:
            for _ in range(2):
                seen = first.scrapes, second.scrapes
                await eventually(lambda seen=seen: first.scrapes > seen[0] and second.scrapes > seen[1])
                stand_still(PAUSE)
            seen = first.scrapes, second.scrapes
            await eventually(lambda: first.scrapes > seen[0] + 1 and second.scrapes > seen[1] + 1)
            assert "kvgate_engine_down_reason{" not in await gateway.metrics()
            failed = [line for line in (await gateway.metrics()).splitlines() if 'result="failed"' in line]
            assert not failed


@pytest.mark.parametrize("begun", [0, -10], ids=["all of it", "its end"])
async def test_a_request_that_lay_in_the_socket_is_in_time(begun):
    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(answer(b'{"choices":[]}'))

    async with ScriptedEngine(post) as server, running(config_for(server.url, timeouts=SHORT)) as gateway:
        async with raw_client(gateway.url) as client:
            request = raw_post(b'{"model":"sim","messages":[{"role":"user","content":"x"}]}')
            await client.say(request[:begun])
            await asyncio.sleep(LATE / 10)  # within which its head may have been read
            client.writer.write(request[begun:])
            stand_still(PAUSE)
            assert (await client.reply()).status == 200


async def test_a_lease_ages_while_we_stand_still(monkeypatch):
    """The prefill's answer came when we could not read it: its lease has run since, and the KV may be another's."""
    monkeypatch.setattr("gateway.proxy.serving.connectors.nixl.PULL_LEASE", PAUSE / 2)

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        connection.writer.write(answer(PREFILLED))
        stand_still(PAUSE)

    async with pair(post) as setting:
        assert (await setting.ask(CHAT))[0] == 200
        assert setting.decode.with_parameters == [False]
        assert (await setting.settled()).fallback == "expired"


async def test_a_lease_ages_while_the_machine_is_suspended(monkeypatch):
    """Then no clock of the loop goes on: ages are told by one that does."""
    slept = 0.0
    monkeypatch.setattr("gateway.proxy.serving.connectors.nixl.PULL_LEASE", 60.0)

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        nonlocal slept
        await connection.say(answer(PREFILLED))
        slept = 3600.0

    async with pair(post) as setting:
        pauses = setting.gateway.gateway.fleet.pauses
        monkeypatch.setattr(pauses, "now", lambda: time.monotonic() + slept)
        assert (await setting.ask(CHAT))[0] == 200
        assert setting.decode.with_parameters == [False]
        assert (await setting.settled()).fallback == "expired"
