"""Peers of the endpoint picker that send floods of frames: others are answered beside them, and memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from grpc import aio

from gateway.epp.messages import HeaderMap, HeaderValue, HttpBody, HttpHeaders, ProcessingRequest
from gateway.epp.transport.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    ErrorCode,
    frame,
    rst_stream,
    settings,
    window_update,
)
from tests.attack.gateway import MIB, Attacked, attacked
from tests.support.ext_proc import MODES, AskingGateway
from tests.support.http2 import Peer, peer, prefixed
from tests.support.processes import told
from tests.support.scripted_engine import ScriptedEngine

ASK = {"model": "sim", "prompt": "hello", "max_tokens": 1}
WIDE = 64 * MIB
"""More memory than before, for what thousands of calls hold while they come; the floods are of any length."""

BATCH = 500
"""Frames, or pairs of them, in one write."""


def begun(client: Peer, stream: int) -> bytes:
    heads = HeaderMap(headers=[HeaderValue(key=":path", raw_value=b"/v1/completions")])
    return client.call(stream, ProcessingRequest(request_headers=HttpHeaders(headers=heads)))


def resets(client: Peer, number: int) -> bytes:
    streams = range(number * BATCH * 2 + 1, (number + 1) * BATCH * 2 + 1, 2)
    return b"".join(begun(client, stream) + rst_stream(stream, ErrorCode.CANCEL) for stream in streams)


def made_to_reset(client: Peer, number: int) -> bytes:
    streams = range(number * BATCH * 2 + 1, (number + 1) * BATCH * 2 + 1, 2)
    return b"".join(begun(client, stream) + window_update(stream, 0) for stream in streams)


def bomb(client: Peer, number: int) -> bytes:
    """A header of 4,000 bytes in the table, and then 16,000 times its number."""
    first = client.head(1, x_bomb="b" * 3_900) if not number else b""
    return first + frame(HEADERS, END_HEADERS, 2 * number + 3, b"\xbe" * 16_000)


FLOODS: dict[str, Callable[[Peer, int], bytes]] = {
    "rapid_reset": resets,
    "made_to_reset": made_to_reset,
    "continuation": lambda client, number: (
        frame(HEADERS, 0, 1) if not number else frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 50) * BATCH
    ),
    "pings": lambda client, number: frame(PING, 0, 0, bytes(8)) * BATCH,
    "settings": lambda client, number: settings({4: number}) * BATCH,
    "priorities": lambda client, number: frame(PRIORITY, 0, 1, bytes(5)) * BATCH,
    "empty_data": lambda client, number: (begun(client, 1) if not number else b"") + frame(DATA, 0, 1) * BATCH,
    "hpack_bomb": bomb,
}


async def flooded(port: int, made: Callable[[Peer, int], bytes]) -> None:
    """Send without end, until the connection is closed."""
    async with peer(port) as client:
        ended = asyncio.ensure_future(client.reader.read())
        with contextlib.suppress(ConnectionError):
            for number in itertools.count():
                client.send(made(client, number))
                await client.writer.drain()
                await asyncio.sleep(0)
                if ended.done():
                    return
        await asyncio.gather(ended, return_exceptions=True)


@contextlib.asynccontextmanager
async def attacking(folder: Path, engine: ScriptedEngine):
    epp = {"listen": "127.0.0.1:0", "health": ""}
    async with attacked(folder, engine.url, epp=epp) as gateway:
        yield gateway, int(await told(gateway.process, r"picker: gRPC on 127.0.0.1:(\d+)"))


async def picks(port: int, engine: ScriptedEngine) -> None:
    """Whether another gateway is answered."""
    async with httpx.AsyncClient(timeout=30) as http, aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        carried = await AskingGateway(channel, http, MODES["request"]).ask(ASK, path="/v1/completions")
        answered = await carried.answered()
        assert answered.destination[0] == engine.url.removeprefix("http://")


async def unharmed(gateway: Attacked, port: int, engine: ScriptedEngine, before: int) -> None:
    assert gateway.peak() - before < WIDE
    await picks(port, engine)
    gateway.unharmed()


@pytest.mark.parametrize("name", list(FLOODS))
async def test_a_flood_of_frames(tmp_path, name):
    async with ScriptedEngine() as engine, attacking(tmp_path, engine) as (gateway, port):
        await picks(port, engine)
        gateway.forget_peak()
        before = gateway.rss()
        flood = asyncio.ensure_future(flooded(port, FLOODS[name]))
        await picks(port, engine)
        await flood
        await unharmed(gateway, port, engine, before)


async def test_answers_that_nobody_takes(tmp_path):
    """Bodies come back to a peer without a window; all of it is given back when that peer is gone."""
    async with ScriptedEngine() as engine, attacking(tmp_path, engine) as (gateway, port):
        await picks(port, engine)
        gateway.forget_peak()
        before = gateway.rss()
        body = b'{"model": "sim", "prompt": "%s", "max_tokens": 1}' % (b"x" * 10_000)
        whole = prefixed(ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=True)))
        async with peer(port) as client:
            client.send(settings({4: 0}))
            for stream in range(1, 1_001, 2):
                client.send(begun(client, stream) + frame(DATA, 0, stream, whole))
                await client.writer.drain()
            for stream in range(1, 1_001, 2):
                await client.until(HEADERS, stream=stream)
        await unharmed(gateway, port, engine, before)
        await gateway.settled()
