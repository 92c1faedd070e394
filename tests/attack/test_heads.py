"""Heads without end, which need no key, and framing that a proxy in front may read as another."""

from __future__ import annotations

import asyncio
import contextlib

from tests.attack.crowd import crowd
from tests.attack.gateway import MIB, attacked
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import raw_client

START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
CLIENTS = 100
FIELD = b"X-Trace: " + b"x" * 60_000 + b"\r\n"
FIELDS = 100


async def test_heads_without_end(tmp_path):
    """[heads_memory] 100 connections of 6 MB each took 60 to 1,210 MB, and 866 stayed."""

    async def flood(url: str) -> bytes:
        async with raw_client(url) as client:
            with contextlib.suppress(ConnectionError):
                await client.say(START)
                for _ in range(FIELDS):
                    await client.say(FIELD)
            return await client.ended()

    async with (
        ScriptedEngine() as engine,
        attacked(tmp_path, engine.url, client_keys={"values": ["secret"]}) as gateway,
    ):
        await crowd(gateway.url, requests=50, clients=5)
        gateway.forget_peak()
        before = gateway.rss()
        said = await asyncio.gather(*(flood(gateway.url) for _ in range(CLIENTS)))
        assert any(b" 431 " in one for one in said), "some have read why, before the reset of what they still said"
        assert gateway.peak() - before < 120 * MIB
        gateway.unharmed()
        assert await gateway.stop() == 0


CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"
ODD = {
    "gzip, chunked": (b"Transfer-Encoding: gzip, chunked\r\n", b"HTTP/1.1", 501),
    "identity, chunked": (b"Transfer-Encoding: identity, chunked\r\n", b"HTTP/1.1", 501),
    "chunked in HTTP/1.0": (b"Transfer-Encoding: chunked\r\n", b"HTTP/1.0", 400),
    "HTTP/2.0": (b"Content-Length: 12\r\n", b"HTTP/2.0", 505),
}


async def test_framing_that_another_may_read_otherwise(tmp_path):
    """[te_gzip] Each is refused by its name and ends its connection; an escaped path is no route."""
    async with ScriptedEngine() as engine, attacked(tmp_path, engine.url) as gateway:
        for field, version, status in ODD.values():
            async with raw_client(gateway.url) as client:
                head = START.replace(b"HTTP/1.1", version) + b"Content-Type: application/json\r\n" + field + b"\r\n"
                await client.say(head + CHUNKED)
                assert (await client.reply()).status == status
                assert await client.ended() == b""
        async with raw_client(gateway.url) as client:
            await client.say(START.replace(b"chat", b"%63hat") + b"Content-Length: 2\r\n\r\n{}")
            assert (await client.reply()).status == 404
        assert engine.posts == 0
        gateway.unharmed()
