"""Heads that are too large are refused while they come, and only heads count. What heads.py leans on in aiohttp is
tried here too: a new version is taken only with these green."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.proxy.http.connection import ClientConnection
from gateway.proxy.http.heads import MAX_HEAD
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, RawClient, answer, chunked, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])

START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
WHOLE = orjson.dumps(CHAT)
CHUNKED = b"%x\r\n%b\r\n" % (len(WHOLE), WHOLE)
SLICE = 4096


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Running, RawClient, asyncio.Event, list[bytes]]]:
    """A gateway, a client, what lets streams go on, and the bodies that its engine was asked."""
    go_on, asked = asyncio.Event(), []

    async def post(connection, head, body):
        asked.append(body)
        if not orjson.loads(body).get("stream"):
            await connection.say(answer(COMPLETE))
            return
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        await go_on.wait()
        await connection.say(chunked(DONE))

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        async with raw_client(gateway.url) as client:
            yield gateway, client, go_on, asked
        await eventually(gateway.idle, "nothing stays booked")


async def flood(client: RawClient, data: bytes, times: int) -> None:
    """Say it again and again, until the other side has closed."""
    with contextlib.suppress(ConnectionError):
        for _ in range(times):
            await client.say(data)
            await asyncio.sleep(0)


UNFINISHED = {
    "one field": START + b"X-Large: ",
    "many fields": START,
    "a request line": b"POST /v1/chat/completions?",
    "a name": START + b"X-",
}


@pytest.mark.parametrize("name", list(UNFINISHED))
async def test_a_head_without_end_is_refused_while_it_comes(name):
    piece = b"X-Trace: " + b"x" * 1000 + b"\r\n" if name == "many fields" else b"x" * 1000
    async with served() as (_, client, _, asked):
        await client.say(UNFINISHED[name])
        count = MAX_HEAD // len(piece) + 2
        for _ in range(count):
            await client.say(piece)
            await asyncio.sleep(0)
        reply = await client.reply()
        assert reply.status == 431
        assert str(MAX_HEAD) in orjson.loads(reply.body)["error"]["message"]
        assert await client.ended() == b""
        assert asked == []


async def test_nothing_of_a_refused_head_is_kept_while_an_answer_goes_on(monkeypatch):
    """The error has its turn behind a stream that takes an hour; what still comes is let go."""
    made: list[ClientConnection] = []
    init = ClientConnection.__init__

    def note(self, *args, **options):
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(ClientConnection, "__init__", note)
    async with served() as (_, client, go_on, asked):
        await client.say(raw_post(orjson.dumps(STREAMED)))
        await eventually(lambda: asked)
        (connection,) = [one for one in made if one._request_count]
        await client.say(START)
        await flood(client, b"X: " + b"x" * SLICE, 3 * MAX_HEAD // SLICE)
        await eventually(lambda: connection._messages, "the refusal waits for its turn")
        assert len(connection._messages) == 1
        await flood(client, b"X: " + b"x" * SLICE, 100)
        assert len(connection._messages) == 1
        go_on.set()
        assert (await client.reply()).body == ROLE + WORD + DONE
        assert (await client.reply()).status == 431
        assert len(asked) == 1


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_complete_head_that_is_too_large_is_refused(at_once):
    fields = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(MAX_HEAD // 1000 + 1))
    said = START + fields + b"Content-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE
    async with served() as (_, client, _, asked):
        for piece in [said] if at_once else [said[i : i + SLICE] for i in range(0, len(said), SLICE)]:
            await client.say(piece)
            await asyncio.sleep(0)
        assert (await client.reply()).status == 431
        assert await client.ended() == b""
        assert asked == []


async def test_a_head_below_the_bound_passes_in_pieces_of_any_size():
    fields = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(60))
    said = START + fields + b"Content-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE
    async with served() as (_, client, _, asked):
        for size in (len(said), 16384, 501):
            for at in range(0, len(said), size):
                await client.say(said[at : at + size])
                await asyncio.sleep(0)
            assert (await client.reply()).status == 200
        assert len(asked) == 3


async def test_bodies_and_many_requests_do_not_count():
    """Each of these is larger than a head may be, and all of them go over one connection, in pieces and at once."""
    large = orjson.dumps({**CHAT, "user": "x" * 3 * MAX_HEAD})
    many = raw_post(WHOLE) * 100
    async with served() as (_, client, _, asked):
        said = raw_post(large) + many + raw_post(large) + many
        sending = asyncio.get_running_loop().create_task(flood_in_pieces(client, said, 5000))
        for _ in range(202):
            assert (await client.reply()).status == 200
        await sending
        assert len(asked) == 202
        for at in range(0, len(said), SLICE):
            await client.say(said[at : at + SLICE])
        for _ in range(202):
            assert (await client.reply()).status == 200


async def flood_in_pieces(client: RawClient, said: bytes, size: int) -> None:
    for at in range(0, len(said), size):
        await client.say(said[at : at + size])
        await asyncio.sleep(0)


async def test_a_body_in_small_chunks_does_not_count():
    """Its framing alone is larger than a head may be."""
    body = orjson.dumps({**CHAT, "user": "x" * 20_000})
    async with served() as (_, client, _, asked):
        await client.say(START + b"Transfer-Encoding: chunked\r\n\r\n")
        pieces = [b"1\r\n%c\r\n" % byte for byte in body] + [b"0\r\n\r\n"]
        assert sum(map(len, pieces)) > 1.5 * MAX_HEAD
        await flood_in_pieces(client, b"".join(pieces), 7)
        assert (await client.reply()).status == 200
        assert asked == [body]


@pytest.mark.parametrize("what", ["trailers", "a chunk's extensions"])
async def test_trailers_and_extensions_without_end_close_the_connection(what):
    begin, more = (
        (CHUNKED + b"0\r\n", b"X-Trace: " + b"x" * 1000 + b"\r\n")
        if what == "trailers"
        else (b"%x" % len(WHOLE), b";a=" + b"x" * 1000)
    )
    async with served() as (gateway, client, _, asked):
        await client.say(START + b"Transfer-Encoding: chunked\r\n\r\n" + begin)
        await flood(client, more, 1000)
        assert b"200 OK" not in await client.ended()
        assert asked == []
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_a_body_whose_connection_we_close_before_it_is_waited_for_is_no_defect(caplog):
    """All of it is there at once: the connection may be closed before the request's handler has had its first turn."""
    said = START + b"Transfer-Encoding: chunked\r\n\r\n%x;a=" % len(WHOLE) + b"x" * 1_000_000
    async with served() as (gateway, _, _, asked):
        for _ in range(20):
            async with raw_client(gateway.url) as client:
                await flood(client, said, 1)
                assert await client.ended() == b""
        assert asked == []
    assert "defect" not in caplog.text
