"""Clients that leave, read nothing, or say little: nothing of them is left behind."""

from __future__ import annotations

import contextlib
import gzip

import orjson

from tests.attack.crowd import crowd
from tests.attack.engines import failing, hangs
from tests.attack.gateway import MIB, attacked
from tests.support.chat import ROLE, STREAMED, WORD, event
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, chunked, raw_client, raw_post

ASK = raw_post(orjson.dumps(STREAMED))


async def test_clients_that_leave(tmp_path):
    """[leaving] While they wait for a head: each engine sees it, and nothing stays booked or open."""
    async with ScriptedEngine(failing(lambda number: hangs)) as engine:
        async with attacked(tmp_path, engine.url) as gateway:
            before = gateway.descriptors()
            for _ in range(50):
                async with raw_client(gateway.url) as client:
                    await client.say(ASK)
                    asked = engine.posts
                    await eventually(lambda asked=asked: engine.posts > asked or engine.under_way)
            await eventually(lambda: engine.under_way == 0, "the engine has seen all of them leave")
            await gateway.settled()
            await eventually(lambda: gateway.descriptors() <= before + 2, "their descriptors are given back")
            gateway.unharmed()
            assert await gateway.stop() == 0


async def test_a_quiet_crowd(tmp_path):
    """[all well] Engines that fail nothing: every request is answered, memory and descriptors come back."""
    async with (
        ScriptedEngine() as first,
        ScriptedEngine() as second,
        attacked(tmp_path, first.url, second.url) as gateway,
    ):
        await crowd(gateway.url, requests=200, clients=50)
        memory, open_files = gateway.rss(), gateway.descriptors()
        result = await crowd(gateway.url, requests=2000, clients=50)
        assert result.ended == {"ok": 2000}
        await gateway.settled()
        assert gateway.rss() - memory < 30 * MIB
        await eventually(lambda: gateway.descriptors() <= open_files + 2)
        gateway.unharmed()
        assert await gateway.stop() == 0


async def test_deaf_clients(tmp_path):
    """[deaf] A hundred that read nothing of endless streams: the engine is held back, memory bounded, and they are cut
    after ``timeouts.idle``."""
    part = chunked(event({"content": "x" * 8000}))

    async def endless(connection: Connection) -> None:
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD))
        while True:
            await connection.say(part)

    async with ScriptedEngine(failing(lambda number: endless)) as engine:
        async with attacked(tmp_path, engine.url, timeouts={"idle": 2}) as gateway:
            memory = gateway.rss()
            async with contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(raw_client(gateway.url, takes=4096)) for _ in range(100)]
                for client in clients:
                    await client.say(ASK)
                await eventually(lambda: engine.posts == len(clients), "all streams run", within=30)
                await eventually(lambda: engine.under_way == 0, "all of them are cut", within=60)
            assert gateway.peak() - memory < 150 * MIB
            await gateway.settled()
            gateway.unharmed()


async def test_slow_heads_are_cut(tmp_path):
    """[slow_heads] Clients that never end their head are gone after ``timeouts.receive``."""
    async with ScriptedEngine() as engine:
        async with attacked(tmp_path, engine.url, timeouts={"receive": 1}) as gateway:
            before = gateway.descriptors()
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(200):
                    client = await stack.enter_async_context(raw_client(gateway.url))
                    await client.say(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                await eventually(lambda: gateway.descriptors() <= before + 2, "all of them are cut", within=30)
            result = await crowd(gateway.url, requests=50, clients=10)
            assert result.ended == {"ok": 50}
            gateway.unharmed()


async def test_bombs(tmp_path):
    """[bombs] A quarter of a gigabyte in 256 KB, four at once: refused in bounded memory, with turns for others."""
    zipped = gzip.compress(bytes(2**28))
    head = b"Content-Encoding: gzip"
    async with ScriptedEngine() as engine, attacked(tmp_path, engine.url) as gateway:
        memory = gateway.rss()
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(raw_client(gateway.url)) for _ in range(4)]
            for client in clients:
                await client.say(raw_post(zipped, head))
            statuses = [(await client.reply()).status for client in clients]
        assert set(statuses) <= {400, 413}, statuses
        assert gateway.peak() - memory < 200 * MIB
        assert gateway.stall.longest < 2
        assert engine.posts == 0
        gateway.unharmed()
