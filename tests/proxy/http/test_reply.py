"""Covers: gateway/proxy/http/reply.py, gateway/proxy/http/connection.py, gateway/proxy/http/written.py.

Answers as they are written, and what connection.py leans on in aiohttp, which promises none of it: a new version is
taken only with these green."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import http_exceptions, web

from gateway.proxy.http import written
from gateway.proxy.http.connection import ClientConnection
from gateway.proxy.http.door import HttpClient
from gateway.proxy.http.reply import AT_ONCE, TOGETHER, HttpReply, Outbox
from gateway.proxy.http.write_progress import taken_of
from gateway.proxy.serving.stages import Stages
from tests.support.wait import eventually

Handle = Callable[[HttpClient], Awaitable[None]]
OUTBOX = Outbox()
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


class Handling:
    """A ``Handler`` that does with each request what the test says."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def handle(self, client: HttpClient) -> None:
        await self._handle(client)

    def invalid(self, error: http_exceptions.HttpProcessingError) -> tuple[int, list[tuple[str, str]], bytes]:
        return 400, [], b"invalid"


class Server(web.Server):
    def __init__(self, handle: Handle) -> None:
        async def unused(http: HttpClient) -> None:
            raise NotImplementedError

        super().__init__(unused, handler_cancellation=True)
        self._handling = Handling(handle)
        self._stages = Stages()

    def __call__(self) -> web.RequestHandler:
        return ClientConnection(self, self._handling, OUTBOX, self._stages, patience=60)


@contextlib.asynccontextmanager
async def connected(handle: Handle) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw connection to a server whose requests ``handle`` answers."""
    runner = web.ServerRunner(Server(handle), handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2], limit=1024)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await runner.cleanup()


def transport_of(http: HttpClient) -> asyncio.Transport:
    assert http.connection.transport is not None
    return http.connection.transport


async def head_of(reader: asyncio.StreamReader) -> list[bytes]:
    return (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")[:-2]


async def test_nothing_is_written_but_what_we_write_and_the_connection_goes_on():
    async def handle(http: HttpClient) -> None:
        client = http.reply(201, [("content-type", "text/plain")], length=4)
        client.send(b"abcd", last=True)

    async with connected(handle) as (reader, writer):
        for _ in range(3):
            writer.write(GET)
            head = await head_of(reader)
            assert head[0] == b"http/1.1 201 created"
            assert [line.partition(b":")[0] for line in head[1:]] == [b"content-type", b"content-length", b"date"]
            assert await reader.readexactly(4) == b"abcd"
        writer.write_eof()
        assert await reader.read() == b"", "nothing behind the last answer"


async def test_a_pipelined_request_is_begun_only_when_the_answer_before_it_is_done():
    order: list[str] = []
    go_on = asyncio.Event()

    async def handle(http: HttpClient) -> None:
        order.append(f"begins {http.path}")
        client = http.reply(200, [], length=None)
        client.send(http.path.encode(), last=False)
        await go_on.wait()
        client.send(b".", last=True)
        order.append(f"ends {http.path}")

    async with connected(handle) as (reader, writer):
        writer.write(b"".join(GET.replace(b"/ ", b"/%d " % number) for number in range(3)))
        await eventually(lambda: order == ["begins /0"], "the first is begun")
        await head_of(reader)
        assert await reader.readuntil(b"/0\r\n") == b"2\r\n/0\r\n"
        assert order == ["begins /0"]
        go_on.set()
        await reader.readuntil(b"/2\r\n1\r\n.\r\n0\r\n\r\n")
        assert order == [f"{word} /{number}" for number in range(3) for word in ("begins", "ends")]


async def test_requests_that_came_in_one_turn_know_of_those_that_are_yet_to_begin():
    others: list[int] = []
    leave = asyncio.Event()

    async def handle(http: HttpClient) -> None:
        others.append(http.stages.waiting)
        if http.path == "/stay":
            await leave.wait()
        http.say(200, [], b"")

    async with contextlib.AsyncExitStack() as stack:
        runner = web.ServerRunner(Server(handle), handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        clients = [await asyncio.open_connection(*runner.addresses[0][:2]) for _ in range(3)]
        for reader, writer in clients:  # each waits for a request, and not only for its task to begin
            writer.write(GET)
            await head_of(reader)
        others.clear()
        for _, writer in clients:
            writer.write(GET + GET)  # the second one has to wait for the first, and is nobody's company
        for reader, _ in clients:
            await head_of(reader)
            await head_of(reader)
        assert others[:3] == [2, 1, 0]
        assert others[3:] == [0, 0, 0]
        others.clear()
        reader, writer = clients[0]
        writer.write(GET.replace(b"/", b"/stay", 1))
        await eventually(lambda: others == [0], "it is begun")
        for _, other in clients[1:]:
            other.transport.abort()
        leave.set()
        await head_of(reader)
        writer.write(GET)
        await head_of(reader)
        assert others == [0, 0]
        for _, each in clients:
            each.transport.abort()


async def test_others_have_turns_between_requests_that_came_at_once():
    """Each of these is answered without a wait, and one packet holds thousands of them."""
    turns: list[int] = []

    async def handle(http: HttpClient) -> None:
        turns.append(counted)
        http.say(200, [], b"")

    async def count() -> None:
        nonlocal counted
        while True:
            counted += 1
            await asyncio.sleep(0)

    counted = 0
    async with connected(handle) as (reader, writer):
        counting = asyncio.get_running_loop().create_task(count())
        writer.write(GET * 200)
        for _ in range(200):
            await head_of(reader)
        counting.cancel()
    assert len(set(turns)) == 200


async def test_a_body_that_came_with_its_head_is_there_at_once_and_only_once():
    seen: list[bytes | None] = []

    async def handle(http: HttpClient) -> None:
        connection = http.connection
        assert isinstance(connection, ClientConnection)
        seen.append(connection.arrived(http.body, limit=3))
        seen.append(connection.arrived(http.body, limit=4))
        seen.append(connection.arrived(http.body, limit=4))
        http.say(200, [], b"")

    async with connected(handle) as (reader, writer):
        for said in (GET, POST + b"Content-Length: 4\r\n\r\nbody", POST + CHUNKED + b"2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"):
            writer.write(said)
            await head_of(reader)
    assert seen == [b"", b"", b"", *[None, b"body", b""] * 2]


async def test_reading_is_paused_by_a_large_body_and_goes_on_once_it_is_read():
    size, paused, read = 4_000_000, asyncio.Event(), []

    async def handle(http: HttpClient) -> None:
        connection = http.connection
        assert isinstance(connection, ClientConnection)
        if http.method == "POST":
            await eventually(lambda: connection._reading_paused, "more has come than is kept")
            paused.set()
            while data := await http.body.readany():
                read.append(len(data))
            assert not connection._reading_paused
        http.say(200, [], b"")

    async with connected(handle) as (reader, writer):
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % size + bytes(size) + GET)
        await asyncio.wait_for(paused.wait(), 10)
        for _ in range(2):
            await head_of(reader)
    assert sum(read) == size


async def test_a_body_that_is_coming_or_broken_has_not_arrived():
    seen: list[bytes | None] = []

    async def handle(http: HttpClient) -> None:
        connection = http.connection
        assert isinstance(connection, ClientConnection)
        seen.append(connection.arrived(http.body, limit=99))
        writer.write(b"dy")
        await eventually(http.body.is_eof, "the rest of it")
        http.body.set_exception(web.RequestPayloadError("broken"))
        seen.append(connection.arrived(http.body, limit=99))
        http.say(200, [], b"")

    async with connected(handle) as (reader, writer):
        writer.write(POST + b"Content-Length: 4\r\n\r\nbo")
        await head_of(reader)
    assert seen == [None, None]


async def test_a_client_that_leaves_cancels_the_handler():
    ended = asyncio.Event()

    async def handle(http: HttpClient) -> None:
        client = http.reply(200, [], length=None)
        client.send(b"abc", last=False)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    async with connected(handle) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"abc\r\n")
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_client_that_takes_nothing_is_told_of_and_so_is_its_coming_back():
    told: list[str] = []

    async def handle(http: HttpClient) -> None:
        client = http.reply(200, [], length=None)
        while not http.connection.full:
            client.send(bytes(100_000), last=False)
            await asyncio.sleep(0)
        told.append("full")
        await client.taken(60)
        told.append("taken")
        client.send(b"", last=True)

    async with connected(handle) as (reader, writer):
        writer.write(GET)
        await eventually(lambda: told == ["full"], "its buffers are full")
        size = len(await reader.readuntil(b"\r\n\r\n"))
        while told == ["full"]:
            size += len(await reader.read(65536))
        writer.write_eof()
        while part := await reader.read(65536):
            size += len(part)
        assert told == ["full", "taken"]
        assert size > 100_000


async def test_nothing_taken_in_time_is_a_timeout_and_slow_is_not():
    slow, outcome = asyncio.Event(), []

    async def handle(http: HttpClient) -> None:
        client = http.reply(200, [], length=None)
        while not http.connection.full:
            client.send(bytes(1_000_000), last=False)
            await asyncio.sleep(0)
        slow.set()
        try:
            await client.taken(0.5)
        except TimeoutError:
            outcome.append("gone")
        client.cut()

    async with connected(handle) as (reader, writer):
        writer.write(GET)
        await slow.wait()
        await eventually(lambda: outcome == ["gone"], "nothing was taken for half a second")
        with contextlib.suppress(ConnectionError):
            assert b"\r\n0\r\n\r\n" not in (await reader.read(-1))[-16:], "the end says that something lacks"


async def test_a_wait_for_a_client_that_is_cancelled_as_the_client_takes_is_only_cancelled():
    told: list[BaseException | str] = []

    async def handle(http: HttpClient) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
        reply = http.reply(200, [], length=None)
        while not http.connection.full:
            reply.send(bytes(100_000), last=False)
            await asyncio.sleep(0)
        waiting = loop.create_task(reply.taken(60))
        await asyncio.sleep(0)
        waiting.cancel()
        http.connection.resume_writing()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        told.append("cancelled")
        http.connection.pause_writing()  # as the transport knows it
        reply.cut()

    async with connected(handle) as (_, writer):
        writer.write(GET)
        await eventually(lambda: told)
        assert told == ["cancelled"]


@pytest.mark.parametrize(
    ("request_head", "length", "kept", "framing"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 3, True, [b"content-length: 3"]),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None, True, [b"transfer-encoding: chunked"]),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            3,
            False,
            [b"content-length: 3", b"connection: close"],
        ),
        (b"GET / HTTP/1.0\r\n\r\n", 3, False, [b"content-length: 3", b"connection: close"]),
        (
            b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            3,
            True,
            [b"content-length: 3", b"connection: keep-alive"],
        ),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", None, False, [b"connection: close"]),
    ],
)
async def test_framing_is_what_the_client_can_read(request_head, length, kept, framing):
    async def handle(http: HttpClient) -> None:
        client = http.reply(200, [], length=length)
        client.send(b"abc", last=True)

    async with connected(handle) as (reader, writer):
        writer.write(request_head)
        head = await head_of(reader)
        assert head[0] == b"http/1.%d 200 ok" % (b"HTTP/1.1" in request_head)
        assert [line for line in head[1:] if not line.startswith(b"date")] == framing
        body = b"3\r\nabc\r\n0\r\n\r\n" if b"transfer-encoding: chunked" in framing else b"abc"
        assert await reader.readexactly(len(body)) == body
        if kept:
            writer.write(GET)
            await head_of(reader)
        else:
            assert await reader.read() == b""


async def test_an_answer_without_content_says_no_length():
    async def handle(http: HttpClient) -> None:
        client = http.reply(204, [], length=0)
        client.send(b"", last=True)

    async with connected(handle) as (reader, writer):
        writer.write(GET + GET)
        for _ in range(2):
            assert [line.partition(b":")[0] for line in await head_of(reader)] == [b"http/1.1 204 no content", b"date"]


def begun(http: HttpClient, written: list[bytes], monkeypatch: pytest.MonkeyPatch) -> HttpReply:
    """An answer whose further writes are noted, and not made."""
    client = http.reply(200, [], length=None)
    client.send(b"begin", last=False)
    monkeypatch.setattr(client, "_transport", Noting(transport_of(http), written))
    return client


async def test_parts_of_one_turn_are_written_at_its_end_and_in_one_piece(monkeypatch):
    written: list[bytes] = []

    async def handle(http: HttpClient) -> None:
        client = begun(http, written, monkeypatch)
        client.part(b"a")
        client.part(b"bc")
        assert written == []
        await asyncio.sleep(0)
        assert written == [b"1\r\na\r\n2\r\nbc\r\n"]
        client.part(b"d")
        client.send(b"e", last=True)
        assert written[1:] == [b"1\r\nd\r\n1\r\ne\r\n0\r\n\r\n"], "what waits goes before the end"
        await asyncio.sleep(0)
        assert len(written) == 2
        transport_of(http).write(b"".join(written))

    async with connected(handle) as (reader, writer):
        for _ in range(2):
            written.clear()
            writer.write(GET)
            await head_of(reader)
            body = b"5\r\nbegin\r\n1\r\na\r\n2\r\nbc\r\n1\r\nd\r\n1\r\ne\r\n0\r\n\r\n"
            assert await reader.readexactly(len(body)) == body


async def test_what_waits_is_written_before_an_answer_is_cut():
    async def handle(http: HttpClient) -> None:
        client = http.reply(200, [], length=None)
        client.send(b"begin", last=False)
        client.part(b"more")
        client.cut()

    async with connected(handle) as (reader, writer):
        writer.write(GET)
        await head_of(reader)
        said = b""
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1024):
                said += piece
        assert said == b"5\r\nbegin\r\n4\r\nmore\r\n"


async def test_one_client_that_is_gone_does_not_keep_what_is_for_the_others():
    both, answers = asyncio.Event(), []

    async def handle(http: HttpClient) -> None:
        client = http.reply(200, [], length=None)
        client.send(b"begin", last=False)
        answers.append((http, client))
        if len(answers) == 2:
            both.set()
        await both.wait()
        if client is answers[1][1]:
            for _, one in answers:
                one.part(b"more")
            transport_of(answers[0][0]).abort()
            await asyncio.sleep(0)
            client.send(b"", last=True)
            return
        await asyncio.Event().wait()

    async with connected(handle) as (reader, writer):
        writer.write(GET)
        await head_of(reader)
        port = writer.get_extra_info("peername")[1]
        other, its_writer = await asyncio.open_connection("127.0.0.1", port)
        its_writer.write(GET)
        await head_of(other)
        body = b"5\r\nbegin\r\n4\r\nmore\r\n0\r\n\r\n"
        assert await other.readexactly(len(body)) == body
        its_writer.transport.abort()


class Noting:
    """A transport whose writes are noted, and not made."""

    def __init__(self, real: asyncio.Transport, written: list[bytes]) -> None:
        self._real = real
        self._written = written

    def write(self, data: bytes) -> None:
        self._written.append(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


@pytest.mark.parametrize(("waits", "aborted"), [([True], True), ([False], False)])
async def test_over_tls_one_look_does_not_end_the_watch_of_a_client_that_takes(monkeypatch, waits, aborted):
    """It has made room just before the look that finds nothing to write, and takes nothing more after that."""
    acknowledged, looks, ended = iter([0, 5, 5]), iter(waits), asyncio.Event()

    def looked(transport: asyncio.Transport) -> bool:
        asyncio.get_running_loop().call_soon(ended.set)
        return next(looks)

    monkeypatch.setattr(written, "may_wait", lambda _: True)
    monkeypatch.setattr(written, "taken_of", lambda _: next(acknowledged))
    monkeypatch.setattr(written, "unwritten", looked)

    watched: list[asyncio.Transport] = []

    async def handle(http: HttpClient) -> None:
        watched.append(transport_of(http))
        http.connection.abort_if_stalled(0.001)
        await asyncio.Event().wait()

    async with connected(handle) as (_, writer):
        writer.write(GET)
        await asyncio.wait_for(ended.wait(), 10)
        assert watched[0].is_closing() == aborted
        assert list(acknowledged) == [], "it was looked at again once it had taken something"


class Counting(asyncio.Transport):
    """Counts its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.times += 1


async def test_with_many_answers_the_first_does_not_wait_for_the_last():
    outbox, clients = Outbox(), [Counting() for _ in range(TOGETHER + 3)]
    for client in clients:
        outbox.add(client, b"part")
    assert [client.times for client in clients] == [1] * TOGETHER + [0] * 3
    await asyncio.sleep(0)
    assert {client.times for client in clients} == {1}
    outbox.add(clients[0], b"part")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert clients[0].times == 2


async def test_more_than_a_transport_takes_waits_for_no_end_of_a_turn(monkeypatch):
    written: list[bytes] = []

    async def handle(http: HttpClient) -> None:
        client = begun(http, written, monkeypatch)
        for _ in range(16):
            client.part(bytes(AT_ONCE // 4))
        assert len(written) == 4
        await asyncio.sleep(0)
        assert sum(map(len, written)) > 4 * AT_ONCE
        client.cut()

    async with connected(handle) as (reader, writer):
        writer.write(GET)
        await reader.read()


async def test_what_tells_that_a_client_takes_changes_when_it_does():
    told: list[int] = []

    async def handle(http: HttpClient) -> None:
        client = http.reply(200, [], length=None)
        while not http.connection.full:
            client.send(bytes(1_000_000), last=False)
            await asyncio.sleep(0)
        told.append(taken_of(transport_of(http)))
        while taken_of(transport_of(http)) == told[0]:  # noqa: ASYNC110 -- of the kernel, which tells nobody
            await asyncio.sleep(0.01)
        told.append(taken_of(transport_of(http)))
        client.cut()

    async with connected(handle) as (reader, writer):
        writer.write(GET)
        await eventually(lambda: told, "its buffers are full")
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
    assert told[1] > told[0] > 0
