"""Covers: gateway/proxy/serving/attempt.py, gateway/proxy/serving/settle.py.

What a request leaves behind. Reference counts free it when it has ended; a cycle would keep its prompt and all that
was known of it until the garbage collector comes, and make its rounds long.
"""

from __future__ import annotations

import asyncio
import sys

import orjson
import pytest

from gateway.proxy.serving import reception
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD
from tests.support.garbage import ours
from tests.support.gateway import config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, answer, chunked, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

REQUESTS = 20


async def talk(connection: Connection, head: bytes, body: bytes) -> None:
    """Answers whole, or streams; for ever where that is asked for."""
    if b'"stream":true' not in body:
        await connection.say(answer(COMPLETE))
        return
    await connection.say(STREAM_HEAD)
    await connection.say_apart(chunked(part, end=False) for part in (ROLE, *[WORD] * 20))
    while b"for ever" in body:
        await connection.say(chunked(WORD, end=False))
        await asyncio.sleep(0)
    await connection.say(chunked(DONE))


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
async def test_an_answered_request_leaves_no_cycle(kept, body):
    async with (
        ScriptedEngine(talk) as server,
        running(config_for(server.url)) as gateway,
        raw_client(gateway.url) as client,
    ):
        await client.say(raw_post(orjson.dumps(body)))
        await client.reply()
        ours()  # what is made once: connections, tables
        for _ in range(REQUESTS):
            await client.say(raw_post(orjson.dumps(body)))
            assert (await client.reply()).status == 200
        assert ours() == []


async def test_a_client_that_leaves_its_stream_leaves_no_cycle(kept):
    endless = raw_post(orjson.dumps(STREAMED | {"user": "for ever"}))
    async with ScriptedEngine(talk) as server, running(config_for(server.url)) as gateway:
        for turn in range(3):
            async with raw_client(gateway.url) as client:
                await client.say(endless)
                await client.reader.readuntil(WORD)
            await eventually(lambda turn=turn: len(gateway.lines) > turn, "it is settled")
            await eventually(gateway.idle, "nothing stays booked")
            if turn == 0:
                ours()
        assert "Attempt" not in ours()


async def test_nothing_keeps_the_body_of_a_stream_that_has_begun(monkeypatch):
    """Its answer may take an hour, and thousands of them may be under way."""
    bodies: list[bytes] = []
    parse = reception.parse

    def noted(route, raw, *others):
        bodies.append(raw)
        return parse(route, raw, *others)

    monkeypatch.setattr(reception, "parse", noted)
    endless = raw_post(orjson.dumps(STREAMED | {"user": "for ever" + "x" * 100_000}))
    async with (
        ScriptedEngine(talk) as server,
        running(config_for(server.url)) as gateway,
        raw_client(gateway.url) as client,
    ):
        await client.say(endless)
        await client.reader.readuntil(WORD)
        [size], held = map(len, bodies), sys.getrefcount(bodies[0])
        assert size > 100_000
        assert held == 2, "the list's, and the argument's"
