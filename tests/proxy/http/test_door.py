"""The front door's requests, as the rest of the gateway sees them: over real sockets, through aiohttp's server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from gateway.core.clock import SystemClock
from gateway.proxy.http.door import HttpClient
from gateway.proxy.http.server import Server
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.director import Director
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.tenants.directory import Directory, Roster
from gateway.tenants.gate import Gate
from gateway.tenants.settings import TenantsSettings
from tests.support.wait import eventually


class Scripted:
    """A director that does with each request what the test says."""

    def __init__(self, does) -> None:
        self._does = does

    async def handle(self, client: HttpClient, route: object, chosen: str) -> None:
        await self._does(client)


@contextlib.asynccontextmanager
async def door(does):
    server = Server(
        cast(Director, Scripted(does)),
        cast(ModelDirectory, None),
        Directory(Roster.make(TenantsSettings()), SystemClock()),
        cast(Gate, None),
        patience=10,
    )
    runner = server.runner()
    await runner.setup()
    listening = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()
    finally:
        listening.close()
        await runner.cleanup()


HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Two: 1\r\nx-two: 2\r\n"
    b"Content-Length: 4\r\nConnection: close\r\n\r\n"
)


async def test_what_a_client_sends_is_read_and_what_is_replied_is_written():
    seen = {}

    async def does(client: HttpClient) -> None:
        share = Share(Memory(1000))
        seen["body"] = await client.receive(limit=10, timeout=5, share=share)
        seen["headers"], seen["remote"] = client.headers, client.remote
        seen["one"], seen["none"] = client.header("X-TWO"), client.header("x-three")
        reply = client.reply(200, [("x-a", "b")], length=5)
        reply.send(b"he", last=False)
        reply.send(b"llo", last=True)
        await reply.taken(5)
        share.release()

    async with door(does) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD + b"body")
        said = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert said.startswith(b"HTTP/1.1 200 OK\r\nx-a: b\r\n")
    assert said.endswith(b"\r\n\r\nhello")
    assert seen["body"] == b"body"
    assert [value for name, value in seen["headers"] if name.lower() == "x-two"] == ["1", "2"]
    assert (seen["one"], seen["none"], seen["remote"]) == ("1", "", "127.0.0.1")


async def test_a_client_that_has_left_gets_no_reply():
    ended = []

    async def does(client: HttpClient) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(ClientGone):
                client.reply(200, [], length=0)
            ended.append(client.answer)

    async with door(does) as (host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD + b"body")
        await writer.drain()
        writer.close()
        await eventually(lambda: ended, "the handler is cancelled")
    assert ended == [None]
