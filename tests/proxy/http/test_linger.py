"""A connection that the gateway ends while its client may still be sending: the answer arrives whole, and the wait for
the client ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.proxy.http import linger
from gateway.proxy.http.connection import ClientConnection
from gateway.proxy.http.linger import Lingering
from gateway.proxy.settings import ListenSettings, ListenTlsSettings
from tests.support.chat import CHAT, COMPLETE
from tests.support.gateway import PATIENT, Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tls import Authority
from tests.support.wait import eventually
from tests.support.wire import Connection, RawClient, answer, chunked, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

LARGE = b"x" * 2_000_000
"""An answer of which much waits in the gateway's kernel when the gateway is done with it."""

TAIL = b"x" * 60_000
"""More than two kernels with small buffers take, and not as much as the gateway waits for."""

CHUNKED = raw_post(chunked(orjson.dumps(CHAT)), b"Transfer-Encoding: chunked", length=None)
"""A request whose connection ends with its answer."""

BEHIND = b"GET /livez HTTP/1.1\r\nHost: gateway\r\n\r\n" * 50_000
"""2 MB: more requests than are parsed ahead, and more bytes than the gateway's kernel takes."""

NEVER = 600.0
"""Seconds that no test lasts."""


async def large(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(answer(LARGE))


async def tail(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(answer(TAIL))


async def small(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(answer(COMPLETE))


@contextlib.asynccontextmanager
async def served(post, authority: Authority | None = None) -> AsyncIterator[tuple[Running, RawClient]]:
    """A gateway before an engine that answers with ``post``, and a client whose kernel takes 16 KB ahead of it."""
    listen = ListenSettings() if authority is None else ListenSettings(tls=ListenTlsSettings(*authority.issue("own")))
    async with ScriptedEngine(post) as engine:
        async with running(config_for(engine.url, timeouts=PATIENT, listen=listen)) as gateway:
            plain = socket.socket()
            plain.setblocking(False)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
            await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", int(gateway.url.rpartition(":")[2])))
            trusting: ssl.SSLContext | None = authority and authority.trusting()
            name = authority and "localhost"
            reader, writer = await asyncio.open_connection(
                sock=plain, limit=16 * 1024, ssl=trusting, server_hostname=name
            )
            try:
                yield gateway, RawClient(reader, writer)
            finally:
                writer.transport.abort()


def connections_of(gateway: Running) -> list[ClientConnection]:
    return [one for listener in gateway.gateway.doors.server._listeners for one in listener.connections]


async def lingers(gateway: Running) -> Lingering:
    """Wait until the client's connection does, and return what holds it."""

    def found() -> list[Lingering]:
        transports = [one.transport for one in connections_of(gateway) if one.transport is not None]
        return [one for one in (transport.get_protocol() for transport in transports) if isinstance(one, Lingering)]

    await eventually(found, "it lingers")
    return found()[0]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_the_end_of_a_large_answer_arrives_whatever_was_sent_behind_the_request(secure, authority):
    async with served(large, authority if secure else None) as (gateway, client):
        client.writer.write(CHUNKED + BEHIND)
        await eventually(lambda: gateway.lines, "it is answered")
        reply = await client.reply()
        assert (reply.header("connection"), reply.body) == ("close", LARGE)
        assert await client.ended() == b"", "and nothing behind it was"
        assert len(gateway.lines) == 1


async def test_the_client_sees_the_end_at_once_and_its_close_is_the_end_for_the_gateway(monkeypatch):
    monkeypatch.setattr(linger, "SILENCE", NEVER)
    async with served(small) as (gateway, client):
        await client.say(CHUNKED)
        assert (await client.reply()).body == COMPLETE
        assert await client.ended() == b""
        held = await lingers(gateway)
        (connection,) = connections_of(gateway)
        assert connection._task_handler is None, "no task waits for it"
        client.writer.close()
        await eventually(lambda: not connections_of(gateway), "it is closed")
        assert held._timer.cancelled()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_one_that_only_stays_is_closed(secure, authority, monkeypatch):
    monkeypatch.setattr(linger, "SILENCE", 0.05)
    async with served(small, authority if secure else None) as (gateway, client):
        await client.say(CHUNKED)
        assert (await client.reply()).body == COMPLETE
        assert await client.ended() == b""
        await eventually(lambda: not connections_of(gateway), "it is closed")


async def test_one_that_goes_on_sending_little_is_closed(monkeypatch):
    monkeypatch.setattr(linger, "SILENCE", 0.05)
    monkeypatch.setattr(linger, "LONGEST", 0.2)
    async with served(small) as (gateway, client):
        await client.say(CHUNKED)
        await lingers(gateway)
        with contextlib.suppress(ConnectionError):
            while connections_of(gateway):
                await client.say(b"x")
                await asyncio.sleep(0.005)
        await eventually(lambda: not connections_of(gateway), "it is closed")


async def test_one_that_goes_on_sending_much_is_closed(monkeypatch):
    monkeypatch.setattr(linger, "SILENCE", NEVER)
    monkeypatch.setattr(linger, "MOST", 1_000_000)
    async with served(small) as (gateway, client):
        await client.say(CHUNKED)
        held = await lingers(gateway)
        with contextlib.suppress(ConnectionError):
            while connections_of(gateway):
                await client.say(BEHIND[:10_000])
        await eventually(lambda: not connections_of(gateway), "it is closed")
        assert 1_000_000 < held._dropped < 1_600_000, "a read of 256 KB more, or two"


async def test_one_that_is_slow_to_read_is_not_silent(monkeypatch):
    """As long as bytes wait in this process, the looks do not end it."""
    looks: list[int] = []
    look = Lingering._look

    def noted(self: Lingering) -> None:
        looks.append(self._transport.get_write_buffer_size())
        look(self)

    monkeypatch.setattr(linger, "SILENCE", 0.01)
    monkeypatch.setattr(linger, "LONGEST", 0.01)
    monkeypatch.setattr(Lingering, "_look", noted)
    async with served(tail) as (gateway, client):
        await client.say(b"GET /livez HTTP/1.1\r\nHost: gateway\r\n\r\n")
        await client.reply()
        (connection,) = connections_of(gateway)
        assert connection.transport is not None
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.writer.transport.pause_reading()
        await client.say(CHUNKED)
        await eventually(lambda: len(looks) >= 3, "it was looked at")
        assert all(looks), "it waits for the client"
        client.writer.transport.resume_reading()
        assert (await client.reply()).body == TAIL
        await eventually(lambda: not connections_of(gateway), "it is closed then")


async def test_a_shutdown_does_not_wait_for_it(monkeypatch):
    """Else this test would not end."""
    monkeypatch.setattr(linger, "SILENCE", NEVER)
    async with served(small) as (gateway, client):
        await client.say(CHUNKED)
        await lingers(gateway)
        assert await gateway.gateway.doors.server.drain(NEVER)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
async def test_one_that_said_that_it_sends_nothing_more_is_not_waited_for(version, secure, authority, monkeypatch):
    monkeypatch.setattr(linger, "SILENCE", NEVER)
    async with served(small, authority if secure else None) as (gateway, client):
        await client.say(raw_post(orjson.dumps(CHAT), b"Connection: close", version=version))
        assert (await client.reply()).body == COMPLETE
        assert await client.ended() == b""
        client.writer.close()
        await eventually(lambda: not connections_of(gateway), "it is closed")
