"""Covers: gateway/proxy/serving/director.py, gateway/proxy/serving/reception.py, gateway/proxy/upstream/answer.py.

A client that goes away cancels what was done for it, in each phase, and nothing stays booked.
"""

from __future__ import annotations

import asyncio
import contextlib

import orjson
import pytest

from gateway.core.prompt import estimate
from gateway.flow.settings import FlowSettings
from gateway.proxy.settings import TimeoutSettings
from tests.support.chat import CHAT, COMPLETE, ROLE, STREAMED, TELLING, WORD
from tests.support.gateway import Running, config_for, running
from tests.support.leaving import Client, Held
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, answer, chunked


async def left(gateway: Running, phase: str) -> None:
    await eventually(lambda: gateway.lines, "the request is settled")
    line = gateway.lines[-1]
    assert (line.outcome, line.status, line.phase) == ("cancelled", 499, phase)
    await eventually(gateway.idle, "every permit and reservation is given back")
    assert f'kvgate_client_disconnects_total{{model="sim",phase="{phase}"}} 1.0' in await gateway.metrics()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
async def test_before_the_engines_head(how, body):
    held = Held()
    async with ScriptedEngine(held) as server, running(config_for(server.url)) as gateway:
        async with Client(gateway, body) as client:
            await eventually(lambda: held.asked, "the engine is asked")
            client.leave(how)
            await eventually(lambda: held.gone, "the engine's connection is closed")
            await left(gateway, "before-commit")


async def test_after_the_head_and_before_commit():
    held = Held(STREAM_HEAD + chunked(b": wait\n\n", end=False))
    async with ScriptedEngine(held) as server, running(config_for(server.url)) as gateway:
        async with Client(gateway, STREAMED) as client:
            await eventually(lambda: held.asked, "the engine is asked")
            client.leave("close")
            await eventually(lambda: held.gone, "the engine's connection is closed")
            await left(gateway, "before-commit")


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_mid_stream(how):
    held = Held(STREAM_HEAD + chunked(ROLE, WORD, end=False))
    async with ScriptedEngine(held) as server, running(config_for(server.url)) as gateway:
        async with Client(gateway, STREAMED) as client:
            await client.reader.readuntil(WORD)
            client.leave(how)
            await eventually(lambda: held.gone, "the engine's connection is closed")
            await left(gateway, "streaming")


async def test_what_came_until_then_is_counted():
    held = Held(STREAM_HEAD, *(chunked(part, end=False) for part in (ROLE, *[WORD] * 21, b"data:")))
    async with ScriptedEngine(held) as server, running(config_for(server.url)) as gateway:
        async with Client(gateway, TELLING) as client:
            await client.reader.readuntil(b"data:\r\n")
            client.leave("close")
            await left(gateway, "streaming")
            assert gateway.lines[-1].output_tokens == 21, "also what was not looked at yet"


async def test_mid_answer_of_an_unstreamed_one():
    held = Held(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    async with ScriptedEngine(held) as server, running(config_for(server.url)) as gateway:
        async with Client(gateway, CHAT) as client:
            await eventually(lambda: held.asked, "the engine is asked")
            client.leave("close")
            await eventually(lambda: held.gone, "the engine's connection is closed")
            await left(gateway, "before-commit")


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
async def test_one_that_takes_nothing_of_its_whole_answer_is_left_in_its_turn(status):
    async def big(connection, head, body):
        await connection.say(answer(b"a" * 50_000_000, status=status))

    timeouts = TimeoutSettings(idle=0.3)
    async with ScriptedEngine(big) as server, running(config_for(server.url, timeouts=timeouts)) as gateway:
        async with Client(gateway, CHAT) as client:
            await client.reader.readuntil(b"\r\n\r\n")
            await left(gateway, "done")


async def test_in_the_queue():
    held = Held()
    limits = FlowSettings(max_in_flight=1, max_queue=5, queue_timeout=60)
    async with ScriptedEngine(held) as server, running(config_for(server.url, limits=limits)) as gateway:
        admission = gateway.gateway.directory.runtimes[0].admission
        async with Client(gateway, CHAT) as first:
            await eventually(lambda: held.asked == 1, "the first is with the engine")
            async with Client(gateway, CHAT) as second:
                await eventually(lambda: admission.waiting == 1, "the second waits")
                second.leave("close")
                await eventually(lambda: admission.waiting == 0, "the second is out of the queue")
            assert gateway.lines[-1].phase == "queued"
            assert held.asked == 1
            first.leave("close")
        await eventually(gateway.idle, "every permit and reservation is given back")


async def test_while_tokenizing():
    held = Held()
    async with ScriptedEngine(held) as server, running(config_for(server.url)) as gateway:
        started, release = asyncio.Event(), asyncio.Event()

        async def slow(prompt, **others):
            started.set()
            await release.wait()
            return estimate(b"x", "slow")

        gateway.gateway.directory.runtimes[0].tokens.tokenize = slow
        async with Client(gateway, CHAT) as client:
            await started.wait()
            client.leave("close")
            await left(gateway, "tokenizing")
        assert held.asked == 0


async def test_while_sending_its_body():
    held = Held()
    async with ScriptedEngine(held) as server, running(config_for(server.url)) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await eventually(lambda: gateway.gateway.doors.server.in_progress == 1, "the request has begun")
        writer.close()
        await eventually(lambda: gateway.gateway.doors.server.in_progress == 0, "the request is over")
        assert gateway.lines[-1].phase == "receiving"
        assert held.asked == 0


async def test_many_that_leave_at_random_moments_leave_nothing_behind():
    async def slow(connection, head, body):
        with contextlib.suppress(ConnectionError):
            if orjson.loads(body).get("stream"):
                await connection.say(STREAM_HEAD)
                for _ in range(5):
                    await connection.say(chunked(WORD, end=False))
                    await asyncio.sleep(0.002)
                await connection.say(chunked())
            else:
                await asyncio.sleep(0.005)
                await connection.say(answer(COMPLETE))

    limits = FlowSettings(max_in_flight=8, max_queue=100, queue_timeout=60)
    async with (
        ScriptedEngine(slow) as one,
        ScriptedEngine(slow) as two,
        running(config_for(one.url, two.url, limits=limits)) as gateway,
    ):

        async def visit(number: int) -> None:
            async with Client(gateway, STREAMED if number % 2 else CHAT) as client:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout((number % 17) * 0.002):
                        await client.reader.read(100)
                client.leave("reset" if number % 3 else "close")

        for _ in range(5):
            await asyncio.gather(*(visit(number) for number in range(40)))
        await eventually(gateway.idle, "every permit and reservation is given back")
        await eventually(lambda: gateway.gateway.doors.server.in_progress == 0, "no request is left")
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 200
