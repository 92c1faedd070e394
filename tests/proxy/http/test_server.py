"""Covers: gateway/proxy/http/server.py, gateway/proxy/serving/model_directory.py.

The gateway's own routes, and its listeners' life.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import AsyncIterator
from typing import cast

import orjson
import pytest
from aiohttp import web

from gateway.config.settings import Config, ModelSettings
from gateway.core.clock import SystemClock
from gateway.fleet.settings import EndpointSettings
from gateway.observability.settings import LogSettings
from gateway.proxy.http.door import HttpClient
from gateway.proxy.http.server import Server
from gateway.proxy.serving.director import Director
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.settings import ListenSettings, ListenTlsSettings
from gateway.tenants.directory import Directory, Roster
from gateway.tenants.gate import Gate
from gateway.tenants.settings import TenantsSettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD
from tests.support.engines import engines
from tests.support.gateway import QUICK_FLEET, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tls import Authority
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, answer, chunked, length_in, raw_post


async def complete(connection, head, body):
    await connection.say(answer(COMPLETE))


async def test_it_lives_and_says_what_it_is():
    async with ScriptedEngine(complete) as server, running(config_for(server.url)) as gateway:
        for path in ("/health", "/livez"):
            reply = await gateway.client.get(path)
            assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
            assert (await gateway.client.head(path)).status_code == 200
        assert "version" in (await gateway.client.get("/version")).json()


async def test_ready_means_that_a_model_has_a_usable_endpoint():
    async with ScriptedEngine(complete) as good, ScriptedEngine(complete) as gone:
        pass
    async with ScriptedEngine(complete) as good:
        config = Config(
            models=(
                ModelSettings(name="up", aliases=("alias",), endpoints=(EndpointSettings(url=good.url),)),
                ModelSettings(name="down", endpoints=(EndpointSettings(url=gone.url),)),
            ),
            fleet=QUICK_FLEET,
            log=LogSettings(requests=False),
        )
        async with running(config) as gateway:
            both = await gateway.client.get("/readyz")
            assert both.status_code == 200
            report = both.json()["models"]
            assert (report["up"]["ready"], report["down"]["ready"]) == (True, False)
            assert list(report["down"]["unusable"].values()) == ["refused"]
            assert (await gateway.client.get("/readyz", params={"model": "alias"})).status_code == 200
            assert (await gateway.client.get("/readyz", params={"model": "down"})).status_code == 503
            assert (await gateway.client.get("/readyz", params={"model": "none"})).status_code == 404


async def test_a_model_with_nothing_but_prefill_engines_is_not_ready():
    async with ScriptedEngine(complete) as server:
        async with running(config_for(endpoints=(EndpointSettings(url=server.url, role="prefill"),))) as gateway:
            answer = await gateway.client.get("/readyz")
            assert (answer.status_code, answer.json()["models"]["sim"]["ready"]) == (503, False)


async def test_models_aliases_and_what_engines_say_of_them():
    async with (
        ScriptedEngine(complete) as server,
        running(config_for(server.url, aliases=("gpt-4o", "org/model"))) as gateway,
    ):
        listed = (await gateway.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [entry["id"] for entry in listed["data"]] == ["sim", "gpt-4o", "org/model"]
        assert {entry["max_model_len"] for entry in listed["data"]} == {4096}
        assert (await gateway.client.get("/v1/models/gpt-4o")).json()["root"] == "sim"
        assert (await gateway.client.get("/v1/models/org/model")).json()["id"] == "org/model"
        missing = await gateway.client.get("/v1/models/none")
        assert missing.status_code == 404
        assert missing.json()["error"]["param"] == "model"


async def test_metrics_are_the_operators_only():
    async with ScriptedEngine(complete) as server, running(config_for(server.url)) as gateway:
        await gateway.client.post("/v1/chat/completions", json=CHAT)
        text = await gateway.metrics()
        assert 'kvgate_requests_total{model="sim",outcome="ok"} 1.0' in text
        assert (await gateway.client.get("/metrics")).status_code == 404


async def test_draining_answers_what_comes_on_kept_connections_as_their_last_and_lets_the_running_end():
    release = asyncio.Event()
    begun = asyncio.Event()

    async def post(connection, head, body):
        if not orjson.loads(body).get("stream"):
            await connection.say(answer(COMPLETE))
            return
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        begun.set()
        await release.wait()
        await connection.say(chunked(DONE))

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        loop = asyncio.get_running_loop()
        stream = loop.create_task(gateway.client.post("/v1/chat/completions", json=STREAMED))
        await begun.wait()
        before = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert "connection" not in before.headers
        draining = loop.create_task(gateway.gateway.doors.server.drain(30, hold=30))
        await eventually(lambda: gateway.gateway.doors.server._leaving, "each answer is the last of its connection")
        for _ in range(2):  # on the kept connection, and on a new one
            last = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert (last.status_code, last.headers["connection"]) == (200, "close")
        ready = await gateway.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert not draining.done()
        release.set()
        assert (await stream).content == ROLE + WORD + DONE
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200, (
            "its connection is kept"
        )
        assert await draining is True


async def test_where_another_process_serves_readiness_stays_green():
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        gateway.gateway.doors.server.leave(ready=True)
        ready = await gateway.client.get("/readyz")
        assert (ready.status_code, ready.headers["connection"]) == (200, "close")


@pytest.mark.parametrize(("sent", "kept"), [(b"", False), (b"GET /livez HT", True), (b"\r\n", False)])
async def test_a_drain_closes_what_waits_for_a_request_but_not_where_a_part_of_one_has_come(sent, kept):
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(b"GET /livez HTTP/1.1\r\nHost: g\r\n\r\n")
        assert await reader.readuntil(b'{"status":"ok"}')
        writer.write(sent)
        draining = asyncio.get_running_loop().create_task(gateway.gateway.doors.server.drain(30))
        if kept:
            for _ in range(20):
                await asyncio.sleep(0)
            assert not draining.done()
            writer.write(b"TP/1.1\r\nHost: g\r\n\r\n")
        rest = await reader.read()
        assert rest.endswith(b'{"status":"ok"}') is kept
        writer.close()
        assert await draining is True


async def test_a_request_that_is_in_the_kernel_only_is_answered():
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        own = gateway.gateway.doors.server
        with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as client:
            await eventually(lambda: own._connections() and own._connections()[0]._waiter, "it waits for a request")
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: g\r\n\r\n")  # without a turn of the loop
            (connection,) = own._connections()
            assert connection.leave(0) is True
            client.settimeout(30)
            assert b"200 OK" in await asyncio.to_thread(client.recv, 1000)


async def test_a_grace_that_is_over_is_over():
    async def post(connection, head, body):
        await connection.gone()

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        hanging = asyncio.get_running_loop().create_task(gateway.client.post("/v1/chat/completions", json=CHAT))
        await eventually(lambda: gateway.gateway.doors.server.in_progress, "the request is with the engine")
        assert await gateway.gateway.doors.server.drain(0.01) is False
        hanging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hanging


TAIL = b'{"id": "' + b"x" * 40_000 + b'"}'
"""More than the system takes for a client with small buffers that reads nothing, less than the relay waits for."""


async def test_a_handler_that_fails_behind_its_head_gets_no_second_answer(caplog):
    """aiohttp would write a whole answer of its own behind what was written."""

    class Failing:
        async def handle(self, client: HttpClient, route: object, chosen: str) -> None:
            client.reply(200, [], length=10).send(b"abc", last=False)
            raise ValueError("a defect")

    server = Server(
        cast(Director, Failing()),
        cast(ModelDirectory, None),
        Directory(Roster.make(TenantsSettings()), SystemClock()),
        cast(Gate, None),
        patience=10,
    )
    runner = server.runner()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    try:
        writer.write(raw_post(orjson.dumps(CHAT)))
        said = b""
        with contextlib.suppress(ConnectionError):  # it is cut off visibly
            while part := await reader.read(1024):
                said += part
        assert said.endswith(b"\r\n\r\nabc")
        assert said.count(b"HTTP/1.1") == 1
        assert "failed by a defect of the gateway" in caplog.text
    finally:
        writer.transport.abort()
        await runner.cleanup()


class Patient:
    """A client that reads nothing before it is told to: asyncio's would read on beneath TLS. ``trusting``: for TLS."""

    def __init__(self, url: str, trusting: ssl.SSLContext | None) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        if trusting is not None:
            self.socket = trusting.wrap_socket(self.socket, server_hostname="localhost")

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def body(self) -> bytes:
        with self.socket.makefile("rb") as file:
            head = b"".join(iter(file.readline, b"\r\n"))
            return file.read(length_in(head))


@contextlib.asynccontextmanager
async def slow_reader(authority: Authority | None) -> AsyncIterator[tuple[Server, Patient]]:
    """A gateway's server that is done with a request, and the client, which has yet to read the answer.

    ``authority``: for one that speaks TLS.
    """

    async def post(connection, head, body):
        await connection.say(answer(TAIL))

    listen = ListenSettings()
    if authority is not None:
        listen = ListenSettings(tls=ListenTlsSettings(*authority.issue("server")))
    async with ScriptedEngine(post) as backend, running(config_for(backend.url, listen=listen)) as gateway:
        server = gateway.gateway.doors.server
        client = await asyncio.to_thread(Patient, gateway.url, authority and authority.trusting())
        with client.socket:
            await asyncio.to_thread(client.say, b"GET /livez HTTP/1.1\r\nHost: g\r\n\r\n")
            assert await asyncio.to_thread(client.body) == b'{"status":"ok"}'
            (connection,) = server._listeners[0].connections
            assert connection.transport is not None
            connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            await asyncio.to_thread(client.say, raw_post(orjson.dumps(CHAT)))
            await eventually(lambda: gateway.lines and not server.in_progress, "it is done with the request")
            yield server, client


def slow(test):
    test = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])(test)
    return pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])(test)


@slow
async def test_a_drain_waits_for_the_end_of_an_answer_that_the_client_has_yet_to_take(secure, authority):
    async with slow_reader(authority if secure else None) as (server, client):
        draining = asyncio.get_running_loop().create_task(server.drain(60))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not draining.done()
        assert await asyncio.to_thread(client.body) == TAIL
        assert await draining is True


@slow
async def test_a_client_that_takes_nothing_does_not_hold_a_drain_beyond_its_grace(secure, authority, caplog):
    async with slow_reader(authority if secure else None) as (server, _):
        assert await server.drain(0.1) is False
    assert "0 requests did not end and 1 clients did not take all" in caplog.text


@slow
async def test_a_client_that_has_just_taken_some_holds_a_drain(secure, authority, caplog):
    """Its kernel has room again, and the loop, which has more to write, has not heard of it yet."""
    async with slow_reader(authority if secure else None) as (server, client):
        (connection,) = server._listeners[0].connections
        assert connection.transport is not None
        ours = connection.transport.get_extra_info("socket").fileno()
        while not select.select([], [ours], [], 0)[1]:
            assert socket.socket.recv(client.socket, 1024), "beneath TLS, and without a turn of the loop"
        assert await server.drain(0.1) is False
    assert "0 requests did not end and 1 clients did not take all" in caplog.text


@slow
async def test_a_client_that_leaves_does_not_hold_a_drain(secure, authority):
    async with slow_reader(authority if secure else None) as (server, client):
        draining = asyncio.get_running_loop().create_task(server.drain(60))
        await asyncio.sleep(0)
        client.socket.close()
        assert await draining is True
