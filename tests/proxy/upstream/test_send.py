"""Covers: gateway/proxy/upstream/send.py, gateway/proxy/upstream/answer.py, gateway/http1/connection.py,
gateway/http1/pool.py.

Every way in which a leg can fail, on real sockets, leaves send.py as the right cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.core.clock import SystemClock
from gateway.fleet.address import Address, TlsContexts
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Endpoint, Engine, Kind
from gateway.framework.fleet import Model
from gateway.http1.pool import Pool
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.answer import Answer
from gateway.proxy.upstream.commit import commit
from gateway.proxy.upstream.legs import Cause, Leg, LegFailed
from gateway.proxy.upstream.send import Upstream
from tests.support.chat import ROLE
from tests.support.gateway import PATIENT
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, ScriptedServer, answer, chunked

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


def leg(url: str, body: bytes = b'{"model":"m"}') -> Leg:
    endpoint = Endpoint(0, "engine", Model("m"), Engine(url=url, name="engine"), load=None, cost=None)  # type: ignore[arg-type]
    address = Address.of(EndpointSettings(url=url), TlsContexts())
    return Leg(endpoint, address, "/v1/completions", [("Content-Type", "application/json")], body)


@contextlib.asynccontextmanager
async def upstream(timeouts: TimeoutSettings = PATIENT) -> AsyncIterator[Upstream]:
    connections = Upstream(timeouts)
    try:
        yield connections
    finally:
        connections.close()


async def failure_of(url: str, timeouts: TimeoutSettings = PATIENT) -> Cause:
    async with upstream(timeouts) as connections:
        with pytest.raises(LegFailed) as failed:
            with await connections.send(leg(url)) as reply:
                await reply.read()
    return failed.value.cause


async def test_an_answer_passes_with_its_status_headers_and_bytes():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(answer(b'{"a": 1}', status="418 Teapot", extra=b"X-One: 1\r\nx-one: 2\r\n"))

    async with ScriptedServer(script) as server, upstream() as connections:
        with await connections.send(leg(server.url)) as reply:
            assert reply.status == 418
            assert [value for name, value in reply.headers if name.lower() == "x-one"] == ["1", "2"]
            assert not reply.is_event_stream
            assert await reply.read() == b'{"a": 1}'
            assert reply.connect_seconds is not None


async def test_a_head_that_cannot_be_written_leaves_no_connection_behind():
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.gone()
        gone.set()

    async with ScriptedServer(script) as server, upstream() as connections:
        split = structs.replace(leg(server.url), headers=[("x-one", "1\r\nx-two: 2")])
        with pytest.raises(ValueError, match="line break"):
            await connections.send(split)
        await asyncio.wait_for(gone.wait(), 10)


@pytest.mark.parametrize("status", ["101 Switching Protocols", "999 Odd", "000 None", "099 Odd"])
async def test_a_status_that_is_no_answer_is_garbage_and_its_connection_is_closed(status: str):
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(answer(b"", status=status))
        await connection.gone()

    async with ScriptedServer(script) as server:
        assert await failure_of(server.url) is Cause.GARBAGE
        await eventually(lambda: server.left == len(server.connections) == 1, "the engine sees the connection closed")


async def test_a_connection_is_used_again_and_its_round_trip_measured_once():
    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.say(answer(b"{}"))

    async with ScriptedServer(script) as server, upstream() as connections:
        for number in range(3):
            with await connections.send(leg(server.url)) as reply:
                await reply.read()
                assert (reply.connect_seconds is None) == (number > 0)
                assert reply.connect_seconds is None or 0 < reply.connect_seconds < 5
        assert len(server.connections) == 1


async def test_an_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.http1.pool.KEEP_ALIVE", 0.05)

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(answer(b"{}"))
        await connection.gone()

    async with ScriptedServer(script) as server, upstream() as connections:
        with await connections.send(leg(server.url)) as reply:
            await reply.read()
        await eventually(lambda: server.left == 1, "the engine sees that the connection is closed")


async def test_an_idle_connection_is_not_used_after_a_while(monkeypatch: pytest.MonkeyPatch):
    """Its engine may be closing it, though nobody has looked since."""
    monkeypatch.setattr("gateway.http1.pool.KEEP_ALIVE", 60.0)

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.say(answer(b"{}"))

    async with ScriptedServer(script) as server, upstream() as connections:
        for number in range(2):
            with await connections.send(leg(server.url)) as reply:
                await reply.read()
                assert reply.connect_seconds is not None
            assert len(server.connections) == number + 1
            monkeypatch.setattr("gateway.http1.pool.KEEP_ALIVE", 0.0)
        await eventually(lambda: server.left >= 1, "the engine sees that the first is closed")


async def test_a_connection_that_was_reset_in_this_turn_of_the_loop_is_not_taken():
    """It hears of it in the next turn. Its engine may be gone, which would cost the request its one death."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.gone()

    async with ScriptedServer(script) as server:
        pool, address = Pool(SystemClock()), leg(server.url).address
        for close in (False, True):
            connection = await pool.connect(address)
            pool._free(address, connection)
            if close:
                connection.transport.abort()  # as the loop does when a read fails
            assert connection.usable
            assert (pool.take(address) is connection) is not close
        pool.close()


async def test_of_many_idle_connections_some_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.http1.pool.KEEP_ALIVE", 60.0)
    monkeypatch.setattr("gateway.http1.pool.MAX_IDLE", 2)
    asked = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            asked.release()
            await go.wait()
            await connection.say(answer(b"{}"))

    async def ask(connections: Upstream) -> None:
        with await connections.send(leg(server.url)) as reply:
            await reply.read()

    async with ScriptedServer(script) as server, upstream() as connections:
        for at_once in (4, 2):
            go.clear()
            asking = [asyncio.create_task(ask(connections)) for _ in range(at_once)]
            for _ in range(at_once):
                await asked.acquire()
            go.set()
            await asyncio.gather(*asking)
            await eventually(lambda: server.left == 2, "the engine sees that two are closed")
        assert len(server.connections) == 4


async def test_a_connection_whose_answer_ended_while_it_was_paused_is_used_again():
    """What was read before it was paused may come after, as it does of TLS."""
    script_went_on = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD + chunked(b"data: 1\n\n", end=False))
        await connection.request()
        script_went_on.set()
        await connection.say(answer(b"second"))

    pool = Pool(SystemClock())
    async with ScriptedServer(script) as server:
        sent = leg(server.url)
        connection = await pool.connect(sent.address)
        with Answer(sent.endpoint) as first:
            await first.head(sent, connection, PATIENT)
            assert await first.chunk() == b"data: 1\n\n"
            first.pause()
            connection.data_received(chunked(b"data: 2\n\n"))
            assert await first.chunk() == b"data: 2\n\n"
            assert await first.chunk() == b""
        assert pool.take(sent.address) is connection
        with Answer(sent.endpoint) as second:
            await second.head(sent, connection, PATIENT)
            assert script_went_on.is_set()
            assert await second.read() == b"second"
    pool.close()


async def test_a_stream_that_is_held_for_its_output_is_the_clients_once_it_is_too_long(monkeypatch: pytest.MonkeyPatch):
    """One that has begun, and says comments without end."""
    monkeypatch.setattr("gateway.proxy.upstream.commit.MAX_HELD", 100_000)

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD + chunked(ROLE, end=False))
        while True:
            await connection.say(chunked(b": " + b"x" * 10_000 + b"\n\n", end=False))

    async with ScriptedServer(script) as server, upstream() as connections:
        reply = await connections.send(leg(server.url))
        with contextlib.closing(await commit(reply, Kind.CHAT, until_output=True)) as committed:
            assert committed.events is not None
            assert (committed.events.committed, committed.events.first_output) == (True, False)
            assert committed.data.startswith(ROLE)


async def test_nothing_listening_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert await failure_of(f"http://127.0.0.1:{taken.getsockname()[1]}") is Cause.REFUSED


async def test_a_full_backlog_is_a_connect_timeout():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        try:
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
                fillers.append(filler)
            cause = await failure_of(f"http://127.0.0.1:{port}", replace(PATIENT, connect=0.2))
        finally:
            for filler in fillers:
                filler.close()
    assert cause is Cause.CONNECT_TIMEOUT


async def test_one_that_closes_before_anything_is_sent_cannot_have_seen_the_request(monkeypatch: pytest.MonkeyPatch):
    """Else a death would be booked, of which a request may cause two at most."""
    connect = Pool.connect

    async def until_closed(self: Pool, address: Address) -> Any:
        connection = await connect(self, address)
        await eventually(lambda: not connection.usable, "the engine's close is seen")
        return connection

    async def script(connection: Connection) -> None:
        connection.reset()

    monkeypatch.setattr(Pool, "connect", until_closed)
    async with ScriptedServer(script) as server:
        assert await failure_of(server.url) is Cause.RESET_UNSENT


async def test_an_engine_that_dies_on_the_request_died():
    async def script(connection: Connection) -> None:
        await connection.request()
        connection.reset()

    async with ScriptedServer(script) as server:
        assert await failure_of(server.url) is Cause.DIED
        assert len(server.connections) == 1


async def test_an_engine_that_closes_without_an_answer_died():
    async def script(connection: Connection) -> None:
        await connection.request()

    async with ScriptedServer(script) as server:
        assert await failure_of(server.url) is Cause.DIED


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x01\x02\x03garbage\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1:8000/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_garbage_is_garbage(said):
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(said)
        await connection.gone()

    async with ScriptedServer(script) as server:
        assert await failure_of(server.url) is Cause.GARBAGE


async def test_a_body_cut_short_died():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")

    async with ScriptedServer(script) as server:
        assert await failure_of(server.url) is Cause.DIED


async def test_garbage_between_chunks_ends_the_answer_at_once():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD + chunked(b"data: {}\n\n", end=False))
        await connection.request()  # the test's word: the first chunk has been read
        await connection.say(b"no length\r\n")
        await connection.gone()

    async with ScriptedServer(script) as server, upstream() as connections:
        with await connections.send(leg(server.url)) as reply:
            assert await reply.chunk() == b"data: {}\n\n"
            server.connections[0].reader.feed_data(b"\r\n\r\n")
            with pytest.raises(LegFailed) as failed:
                await asyncio.wait_for(reply.chunk(), 30)
    assert failed.value.cause is Cause.GARBAGE


async def test_no_head_in_time_closes_the_connection():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.gone()

    async with ScriptedServer(script) as server:
        assert await failure_of(server.url, replace(PATIENT, head=0.05)) is Cause.HEAD_TIMEOUT
        await eventually(lambda: server.left == 1, "the engine sees that the connection is closed")


async def test_comments_are_no_answer_to_the_head_timeout():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD)
        while True:
            await connection.say(chunked(b": keep-alive\n\n", end=False))
            await asyncio.sleep(0.005)

    async with ScriptedServer(script) as server:
        assert await failure_of(server.url, replace(PATIENT, head=0.1)) is Cause.HEAD_TIMEOUT


async def test_after_commit_only_idle_and_total_count():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD + chunked(b"data: 1\n\n", end=False))
        await connection.gone()

    async with ScriptedServer(script) as server, upstream(replace(PATIENT, head=0.05, idle=0.2)) as connections:
        with await connections.send(leg(server.url)) as reply:
            assert await reply.chunk() == b"data: 1\n\n"
            reply.committed()
            with pytest.raises(LegFailed) as failed:
                await reply.chunk()
    assert failed.value.cause is Cause.IDLE_TIMEOUT


async def test_an_answer_that_trickles_for_ever_ends_at_the_total():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD)
        while True:
            await connection.say(chunked(b"data: x\n\n", end=False))
            await asyncio.sleep(0.005)

    async with ScriptedServer(script) as server, upstream(replace(PATIENT, total=0.2)) as connections:
        with await connections.send(leg(server.url)) as reply:
            reply.committed()
            with pytest.raises(LegFailed) as failed:
                while await reply.chunk():
                    pass
    assert failed.value.cause is Cause.TOTAL_TIMEOUT


async def test_a_connection_that_died_idle_is_replaced_silently():
    async def script(connection: Connection) -> None:
        await connection.request()
        if connection.number == 0:
            await connection.say(answer(b"{}"))
            await connection.request()  # the second request comes, and is never answered: the server was closing
            return
        await connection.say(answer(b'{"second": true}'))

    async with ScriptedServer(script) as server, upstream() as connections:
        with await connections.send(leg(server.url)) as reply:
            await reply.read()
        with await connections.send(leg(server.url)) as reply:
            assert await reply.read() == b'{"second": true}'
        assert len(server.connections) == 2


async def test_a_kept_connection_whose_engine_is_gone_died_and_was_not_refused():
    """Else a request that kills engines would be sent to each of the fleet, free of charge."""
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(answer(b"{}"))
        await connection.request()
        await closed.wait()
        connection.reset()

    async with upstream() as connections:
        async with ScriptedServer(script) as server:
            with await connections.send(leg(server.url)) as reply:
                await reply.read()
            listener_gone = asyncio.get_running_loop().create_task(connections.send(leg(server.url)))
            await eventually(lambda: len(server.connections) == 1, "the second request is on its way")
        closed.set()
        with pytest.raises(LegFailed) as failed:
            await listener_gone
    assert failed.value.cause is Cause.DIED


async def test_leaving_an_answer_early_closes_its_connection():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD + chunked(b"data: 1\n\n", end=False))
        await connection.gone()

    async with ScriptedServer(script) as server, upstream() as connections:
        with await connections.send(leg(server.url)) as reply:
            await reply.chunk()
        await eventually(lambda: server.left == 1, "the engine sees that the connection is closed")


async def test_cancelling_before_the_head_closes_the_connection():
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.gone()

    async with ScriptedServer(script) as server, upstream() as connections:
        task = asyncio.get_running_loop().create_task(connections.send(leg(server.url)))
        await eventually(lambda: len(server.connections) == 1, "the request arrives")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: server.left == 1, "the engine sees that the connection is closed")


async def test_a_large_body_arrives_whole():
    sizes = []

    async def script(connection: Connection) -> None:
        sizes.append(len((await connection.request())[1]))
        await connection.say(answer(b"{}"))

    async with ScriptedServer(script) as server, upstream() as connections:
        with await connections.send(leg(server.url, b"x" * 20_000_000)) as reply:
            await reply.read()
    assert sizes == [20_000_000]
