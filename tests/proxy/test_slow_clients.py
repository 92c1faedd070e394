"""Covers: gateway/proxy/serving/relay.py, gateway/proxy/http/reply.py, gateway/proxy/http/write_progress.py.

Clients that are slow, that stop and that go: what it costs the engine, the gateway and everybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import orjson
import pytest

from gateway.proxy.http.connection import ClientConnection
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.answer import Answer
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD, event
from tests.support.gateway import PATIENT, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, RawClient, answer, chunked, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

WHOLE, STREAM = raw_post(orjson.dumps(CHAT)), raw_post(orjson.dumps(STREAMED))
LONG = event({"content": "x" * 8000})
SMALL = 16 * 1024
"""Bytes that the system takes for a client that reads nothing, about; else it would be megabytes."""

ENOUGH = 100_000_000
"""Bytes of a stream whose client takes nothing."""
HELD = 40_000_000
"""Bytes that may be on their way then: two sockets' buffers are up to 4 MB for what is sent and, here, 32 for what is
received, of which a stopped reader takes a part; the gateway's own are far below that."""


class Talker:
    """Streams ``count`` long events and the end. ``said``: bytes of events that the system has taken; ``gone``: its
    connection was closed before it was through."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.said = 0
        self.asked = 0
        self.gone = False

    async def __call__(self, connection: Connection, head: bytes, body: bytes) -> None:
        if b'"stream":true' not in body:
            await connection.say(answer(COMPLETE))
            return
        self.asked += 1
        try:
            await connection.say(STREAM_HEAD + chunked(ROLE, end=False))
            for _ in range(self.count):
                await connection.say(chunked(LONG, end=False))
                self.said += len(LONG)
            await connection.say(chunked(DONE))
        except ConnectionError:
            self.gone = True
            raise

    @property
    def all(self) -> bytes:
        return ROLE + LONG * self.count + DONE


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``pause`` and ``resume``, as engines' answers are told."""
    told: list[str] = []

    def told_as(name: str, real: Callable[[Answer], None]) -> Callable[[Answer], None]:
        def tell(self: Answer) -> None:
            told.append(name)
            real(self)

        return tell

    for name in ("pause", "resume"):
        monkeypatch.setattr(Answer, name, told_as(name, getattr(Answer, name)))
    return told


class Accepted(list[ClientConnection]):
    """Connections that the gateway has accepted."""

    @property
    def open(self) -> list[asyncio.Transport]:
        return [one.transport for one in self if one.transport is not None]

    @property
    def waiting(self) -> int:
        """Bytes that the gateway has for their clients."""
        return sum(transport.get_write_buffer_size() for transport in self.open)


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> Accepted:
    found, made = Accepted(), ClientConnection.connection_made

    def noted(self: ClientConnection, transport: asyncio.BaseTransport) -> None:
        found.append(self)
        made(self, transport)

    monkeypatch.setattr(ClientConnection, "connection_made", noted)
    return found


@pytest.mark.parametrize("request_bytes", [WHOLE, STREAM], ids=["whole", "streamed"])
async def test_a_client_that_reads_byte_by_byte_gets_every_byte(request_bytes):
    talker = Talker(1)
    async with ScriptedEngine(talker) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        async with raw_client(gateway.url, takes=SMALL) as client:
            await client.say(request_bytes + WHOLE)
            said = b""
            while not said.endswith(COMPLETE) or said.count(b"HTTP/1.1 200") < 2:
                byte = await client.reader.read(1)
                assert byte
                said += byte
            again = asyncio.StreamReader(limit=len(said))
            again.feed_data(said)
            parsed = RawClient(again, client.writer)
            assert (await parsed.reply()).body == (talker.all if request_bytes is STREAM else COMPLETE)
            assert (await parsed.reply()).body == COMPLETE
        await eventually(gateway.idle, "nothing stays booked")


async def test_a_client_that_stops_reading_stops_the_engine_and_is_left_in_its_turn(stops):
    talker = Talker(ENOUGH // len(LONG))
    timeouts = TimeoutSettings(idle=1.0)
    async with ScriptedEngine(talker) as server, running(config_for(server.url, timeouts=timeouts)) as gateway:
        async with raw_client(gateway.url, takes=SMALL) as client:
            await client.say(STREAM)
            await eventually(lambda: stops, "the engine's connection is stopped", within=60)
            await eventually(lambda: talker.gone, "the engine's connection is closed", within=60)
            assert talker.said < HELD
            assert stops[-1] == "pause"
            await eventually(lambda: gateway.lines, "the request is settled", within=60)
            line = gateway.lines[-1]
            assert (line.outcome, line.status, line.phase) == ("cancelled", 499, "streaming")
            await eventually(gateway.idle, "nothing stays booked")
            assert len(await client.ended()) < HELD, "and the client's is closed too"


async def test_one_that_stops_and_goes_on_gets_every_byte(stops):
    talker = Talker(3000)
    async with ScriptedEngine(talker) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        async with raw_client(gateway.url, takes=SMALL) as client:
            await client.say(STREAM + WHOLE)
            await eventually(lambda: stops, "the engine's connection is stopped", within=60)
            assert (await client.reply()).body == talker.all
            assert stops.count("resume") == stops.count("pause")
            assert (await client.reply()).body == COMPLETE
            line = gateway.lines[0]
            assert (line.outcome, line.output_tokens) == ("ok", talker.count)
        await eventually(gateway.idle, "nothing stays booked")


async def test_one_that_is_slow_and_never_stops_is_waited_for(stops):
    """It takes longer than ``idle`` in all, and takes something within each."""
    talker = Talker(1500)
    async with ScriptedEngine(talker) as server:
        async with running(config_for(server.url, timeouts=TimeoutSettings(idle=1.0))) as gateway:
            async with raw_client(gateway.url, takes=SMALL) as client:
                await client.say(STREAM)
                loop = asyncio.get_running_loop()
                await eventually(lambda: stops, "the engine's connection is stopped", within=60)
                began, size = loop.time(), 0
                while loop.time() - began < 1.5:
                    size += len(await client.reader.read(SMALL))
                    await asyncio.sleep(0.01)
                assert size < len(talker.all)
                await _through(client)
            await eventually(gateway.idle, "nothing stays booked")
            assert gateway.lines[0].outcome == "ok"


async def test_one_that_stops_before_a_whole_answer_keeps_no_engine():
    whole = answer(b"x" * 20_000_000)

    async def big(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(whole)

    async with ScriptedEngine(big) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        endpoint = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)[0]
        async with raw_client(gateway.url, takes=SMALL) as client:
            await client.say(WHOLE * 2)
            for _ in range(2):
                await client.reader.readuntil(b"\r\n\r\n")
                assert endpoint.load.requests == 0
                assert await client.reader.readexactly(20_000_000) == whole[-20_000_000:]
        await eventually(gateway.idle, "nothing stays booked")


async def test_one_that_leaves_the_end_of_its_answer_unread_is_left_in_its_turn(accepted):
    """Less waits for it than would stop an engine, and it has all been handed over."""

    async def whole(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(answer(b"x" * orjson.loads(body)["size"]))

    async with ScriptedEngine(whole) as server:
        async with running(config_for(server.url, timeouts=TimeoutSettings(idle=1.0))) as gateway:
            size = 1_000_000
            while True:  # what the systems between take is not known: until something is left with the gateway
                async with raw_client(gateway.url, takes=SMALL) as client:
                    client.writer.transport.pause_reading()
                    await client.say(raw_post(orjson.dumps(CHAT | {"size": size})))
                    count = len(gateway.lines)
                    await eventually(lambda count=count: len(gateway.lines) > count, "it is answered", within=60)
                    if gateway.lines[-1].outcome == "ok" and accepted.waiting:
                        assert accepted.waiting <= 64 * 1024
                        await eventually(lambda: not accepted.open, "its connection is closed", within=60)
                        client.writer.transport.resume_reading()
                        assert len(await client.ended()) < size
                        return
                size += 40_000


async def test_one_that_is_behind_and_closes_its_half_keeps_no_engine(accepted):
    talker = Talker(ENOUGH // len(LONG))
    async with ScriptedEngine(talker) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        async with raw_client(gateway.url, takes=SMALL) as client:
            client.writer.transport.pause_reading()
            await client.say(STREAM)
            await eventually(lambda: accepted.waiting, "it is behind", within=60)
            client.writer.write_eof()
            await eventually(lambda: talker.gone, "the engine's connection is closed", within=60)
            await eventually(gateway.idle, "nothing stays booked", within=60)


async def test_what_waits_for_a_slow_client_is_little_each_time(monkeypatch, stops):
    waiting: list[int] = []
    pause = ClientConnection.pause_writing

    def noted(self: ClientConnection) -> None:
        assert self.transport is not None
        waiting.append(self.transport.get_write_buffer_size())
        pause(self)

    monkeypatch.setattr(ClientConnection, "pause_writing", noted)
    talker = Talker(3000)
    async with ScriptedEngine(talker) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        async with raw_client(gateway.url, takes=SMALL) as client:
            await client.say(STREAM)
            await eventually(lambda: stops, "the engine's connection is stopped", within=60)
            await _through(client)
        await eventually(gateway.idle, "nothing stays booked")
    assert len(waiting) > 3
    # As much as is read of an engine at once comes on top of the transport's own high-water mark.
    assert max(waiting) < 64 * 1024 + 2 * 256 * 1024


async def test_stopped_clients_stop_nobody_else(stops):
    talker = Talker(ENOUGH // len(LONG))
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedEngine(talker))
        gateway = await stack.enter_async_context(running(config_for(server.url, timeouts=PATIENT)))
        stuck = [await stack.enter_async_context(raw_client(gateway.url, takes=SMALL)) for _ in range(5)]
        for client in stuck:
            await client.say(STREAM)
        await eventually(lambda: stops.count("pause") >= 5, "all are stopped", within=60)
        quick = await stack.enter_async_context(raw_client(gateway.url))
        for _ in range(20):
            await quick.say(WHOLE)
            assert (await quick.reply()).body == COMPLETE
        for client in stuck:
            client.reset()
        await eventually(lambda: len(gateway.lines) == 25, "all are settled", within=60)
        await eventually(gateway.idle, "nothing stays booked")


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("when", ["in a chunk", "stopped"])
async def test_a_client_that_goes_closes_the_engines_connection(how, when, stops):
    gone = asyncio.Event()
    talker = Talker(ENOUGH // len(LONG))

    async def half(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(STREAM_HEAD + chunked(ROLE, end=False) + chunked(WORD, end=False)[:-10])
        await connection.gone()
        gone.set()
        connection.writer.close()

    post: Callable[[Connection, bytes, bytes], Awaitable[None]] = half if when == "in a chunk" else talker
    async with ScriptedEngine(post) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        async with raw_client(gateway.url, takes=SMALL) as client:
            await client.say(STREAM)
            if when == "in a chunk":
                await client.reader.readuntil(WORD[:-20])
            else:
                await eventually(lambda: stops, "the engine's connection is stopped", within=60)
            client.reset() if how == "reset" else client.writer.close()
            await eventually(lambda: gone.is_set() or talker.gone, "the engine's connection is closed", within=60)
            await eventually(gateway.idle, "nothing stays booked", within=60)
        line = gateway.lines[-1]
        assert (line.outcome, line.status, line.phase) == ("cancelled", 499, "streaming")


@pytest.mark.parametrize("how", ["reset", "close", "behind"])
async def test_half_a_body_is_asked_of_no_engine(how):
    talker = Talker(0)
    async with ScriptedEngine(talker) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        async with raw_client(gateway.url) as client:
            await client.say(WHOLE + STREAM[:-5] if how == "behind" else STREAM[:-5])
            if how == "behind":
                assert (await client.reply()).body == COMPLETE
            await eventually(lambda: gateway.gateway.doors.server.in_progress == 1, "the request has begun")
            client.reset() if how == "reset" else client.writer.close()
            await eventually(lambda: gateway.gateway.doors.server.in_progress == 0, "and is over")
        assert (gateway.lines[-1].outcome, gateway.lines[-1].phase) == ("cancelled", "receiving")
        assert talker.asked == 0


async def test_a_client_that_goes_takes_what_it_had_asked_behind_with_it():
    asked: list[bytes] = []

    async def holds(connection: Connection, head: bytes, body: bytes) -> None:
        asked.append(body)
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        await connection.gone()
        connection.writer.close()

    async with ScriptedEngine(holds) as server, running(config_for(server.url, timeouts=PATIENT)) as gateway:
        async with raw_client(gateway.url) as client:
            await client.say(STREAM + WHOLE * 3)
            await client.reader.readuntil(WORD)
            client.reset()
            await eventually(lambda: gateway.lines, "the request is settled")
        await eventually(gateway.idle, "nothing stays booked")
        async with raw_client(gateway.url) as other:
            await other.say(STREAM)
            await other.reader.readuntil(WORD)
            assert len(asked) == 2, "what was behind it was never begun"


async def _through(client: RawClient) -> None:
    """Read to a stream's end. Raises AssertionError where it is cut."""
    end = b""
    while not end.endswith(b"0\r\n\r\n"):
        data = await client.reader.read(65536)
        assert data, "it was cut"
        end = (end + data)[-64:]
