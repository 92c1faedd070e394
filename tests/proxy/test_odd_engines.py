"""Covers: gateway/http1/connection.py, gateway/proxy/upstream/answer.py, gateway/proxy/upstream/deadlines.py.

Engines that speak HTTP oddly, falsely or not at all: what reaches the client, and that no answer is another's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import orjson
import pytest

from gateway.http1.connection import MAX_HEAD, Receiver
from gateway.http1.connection import Connection as EngineConnection
from gateway.proxy.settings import RetrySettings, TimeoutSettings
from gateway.proxy.upstream.answer import Answer as LegAnswer
from gateway.proxy.upstream.deadlines import Deadlines
from gateway.proxy.upstream.legs import Cause
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import IN_TURN, PATIENT, Running, config_for, running
from tests.support.scripted_engine import Post, ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import Connection, RawClient, answer, chunked, length_in, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

WHOLE, STREAM = raw_post(orjson.dumps(CHAT)), raw_post(orjson.dumps(STREAMED))
EVENTS = ROLE + WORD + DONE
NOT_AGAIN = RetrySettings(attempts=1, budget=0.0)

JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENT_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def before(*posts: Post, **changes: object) -> AsyncIterator[tuple[Running, RawClient]]:
    """A client of a gateway in front of one engine for each of ``posts``."""
    async with contextlib.AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(ScriptedEngine(post))).url for post in posts]
        changes = {"timeouts": PATIENT, "retries": NOT_AGAIN} | IN_TURN | changes
        gateway = await stack.enter_async_context(running(config_for(*urls, **changes)))
        yield gateway, await stack.enter_async_context(raw_client(gateway.url))
        await eventually(gateway.idle, "nothing stays booked")


def says(whole: bytes, streamed: bytes, *, then: str = "goes on") -> Post:
    """Answers with these bytes. ``then``: it ``goes on``, ``closes`` or ``resets``, or ``waits`` for its peer to go."""

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(streamed if orjson.loads(body).get("stream") else whole)
        if then == "waits":
            await connection.gone()
        if then == "resets":
            connection.reset()
        elif then != "goes on":
            connection.writer.close()

    return post


STREAMED_WELL = EVENT_HEAD + CHUNKED + chunked(ROLE, WORD, DONE)
WELL = says(answer(COMPLETE), STREAMED_WELL)


async def answered(client: RawClient, *, times: int = 2) -> None:
    for _ in range(times):
        await client.say(WHOLE + STREAM)
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, COMPLETE), reply
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, EVENTS), reply


# Engines that are odd, and right

LENGTH = b"Content-Length: %d\r\n" % len(COMPLETE)

ODD = {
    "chunked JSON": says(JSON_HEAD + CHUNKED + chunked(COMPLETE[:7], COMPLETE[7:]), STREAMED_WELL),
    "a stream with a length": says(answer(COMPLETE), EVENT_HEAD + b"Content-Length: %d\r\n\r\n" % len(EVENTS) + EVENTS),
    "until the end": says(JSON_HEAD + b"\r\n" + COMPLETE, EVENT_HEAD + b"\r\n" + EVENTS, then="closes"),
    "HTTP/1.0": says(
        (JSON_HEAD + b"\r\n" + COMPLETE).replace(b"1.1", b"1.0"),
        (EVENT_HEAD + b"\r\n" + EVENTS).replace(b"1.1", b"1.0"),
        then="closes",
    ),
    "HTTP/1.0 with a length that stays": says(
        (JSON_HEAD + LENGTH + b"\r\n" + COMPLETE).replace(b"1.1", b"1.0"), STREAMED_WELL
    ),
    "continue, early hints": says(
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(COMPLETE),
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 3\r\n\r\n" * 3 + STREAMED_WELL,
    ),
    "trailers": says(
        JSON_HEAD + b"Trailer: x-sum\r\n" + CHUNKED + chunked(COMPLETE, end=False) + b"0\r\nx-sum: 1\r\n\r\n",
        EVENT_HEAD + CHUNKED + chunked(ROLE, WORD, DONE, end=False) + b"0\r\nx-sum: 1\r\ncontent-type: x\r\n\r\n",
    ),
    "chunked in other letters": says(
        JSON_HEAD + CHUNKED.replace(b"chunked", b"Chunked ") + chunked(COMPLETE),
        EVENT_HEAD + CHUNKED.upper() + chunked(ROLE, WORD, DONE),
    ),
    "chunk extensions": says(
        JSON_HEAD + CHUNKED + b"%x;a=b\r\n%b\r\n0;last\r\n\r\n" % (len(COMPLETE), COMPLETE),
        EVENT_HEAD + CHUNKED + b'%x;a="b;c"\r\n%b\r\n0\r\n\r\n' % (len(EVENTS), EVENTS),
    ),
    "connection: close": says(
        JSON_HEAD + b"Connection: close\r\n" + LENGTH + b"\r\n" + COMPLETE,
        EVENT_HEAD + b"Connection: close\r\n" + CHUNKED + chunked(EVENTS),
        then="closes",
    ),
    "connection: close, and it stays": says(
        JSON_HEAD + b"Connection: close\r\n" + LENGTH + b"\r\n" + COMPLETE,
        EVENT_HEAD + b"Connection: close\r\n" + CHUNKED + chunked(EVENTS),
        then="waits",
    ),
    "it closes and did not say so": says(answer(COMPLETE), STREAMED_WELL, then="closes"),
    "it resets after each": says(answer(COMPLETE), STREAMED_WELL, then="resets"),
    "a blank line behind": says(answer(COMPLETE) + b"\r\n", STREAMED_WELL + b"\r\n"),
    "more behind the answer": says(answer(COMPLETE) + b"more", STREAMED_WELL + b"0\r\n\r\n"),
    "an answer behind the answer": says(answer(COMPLETE) + answer(b"wrong"), STREAMED_WELL + STREAMED_WELL),
    "more behind, on one that closes": says(
        JSON_HEAD + b"Connection: close\r\n" + LENGTH + b"\r\n" + COMPLETE + b"more", STREAMED_WELL + b"\x00"
    ),
    "an empty first chunk of comments": says(
        answer(COMPLETE), EVENT_HEAD + CHUNKED + chunked(*(bytes((byte,)) for byte in EVENTS))
    ),
    "a hundred headers": says(
        JSON_HEAD + b"".join(b"x-%d: %d\r\n" % (n, n) for n in range(100)) + LENGTH + b"\r\n" + COMPLETE, STREAMED_WELL
    ),
    "a header of 64 KB": says(
        JSON_HEAD + b"x-large: " + b"a" * 65536 + b"\r\n" + LENGTH + b"\r\n" + COMPLETE, STREAMED_WELL
    ),
    "an upgrade on offer": says(
        JSON_HEAD + b"Upgrade: h2c\r\nConnection: upgrade\r\n" + LENGTH + b"\r\n" + COMPLETE, STREAMED_WELL
    ),
}


@pytest.mark.parametrize("name", list(ODD))
async def test_an_answer_that_is_odd_and_right_reaches_its_client_and_no_other(name):
    async with before(ODD[name]) as (_, client):
        await answered(client)


@pytest.mark.parametrize("name", ["trailers", "chunk extensions", "continue, early hints", "connection: close"])
async def test_byte_by_byte(name):
    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        said: list[bytes] = []

        class Recorded(Connection):
            async def say(self, data: bytes) -> None:
                said.append(data)

        recorded = Recorded(connection.reader, connection.writer, connection.number)
        await ODD[name if not name.startswith("connection") else "chunked JSON"](recorded, head, body)
        await connection.say_apart(bytes((byte,)) for byte in said[0])

    async with before(post) as (_, client):
        await answered(client, times=1)


# Engines that are wrong: nothing of it is the client's, or it is cut visibly

BOTH = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
WRONG = {
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" + COMPLETE,
    "both length headers": JSON_HEAD + BOTH + chunked(COMPLETE),
    "two lengths": JSON_HEAD + LENGTH + b"Content-Length: 5\r\n\r\n" + COMPLETE,
    "the same length twice": JSON_HEAD + LENGTH + LENGTH + b"\r\n" + COMPLETE,
    "a list of lengths": JSON_HEAD + LENGTH.replace(b"\r\n", b", 5\r\n\r\n") + COMPLETE,
    "no number for a length": JSON_HEAD + b"Content-Length: many\r\n\r\n" + COMPLETE,
    "a space before the colon": JSON_HEAD + LENGTH.replace(b":", b" :") + b"\r\n" + COMPLETE,
    "a NUL in a header": JSON_HEAD + b"x: a\0b\r\n" + LENGTH + b"\r\n" + COMPLETE,
    "a CR in a header": JSON_HEAD + b"x: a\rb\r\n" + LENGTH + b"\r\n" + COMPLETE,
    "no size of a chunk": JSON_HEAD + CHUNKED + b"xyz\r\n" + COMPLETE,
    "a chunk longer than it says": JSON_HEAD + CHUNKED + b"3\r\n" + COMPLETE + b"\r\n0\r\n\r\n",
    "headers without end": JSON_HEAD + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 1000) for n in range(200)),
    "one header without end": JSON_HEAD + b"x: " + b"a" * (2 * MAX_HEAD),
    "early hints without end": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 8000,
    "a chunk's extension without end": JSON_HEAD + CHUNKED + b"5;" + b"a" * (2 * MAX_HEAD),
    "trailers without end": JSON_HEAD + CHUNKED + chunked(COMPLETE, end=False) + b"0\r\nx: " + b"a" * (2 * MAX_HEAD),
    "a length in the trailers": JSON_HEAD + CHUNKED + chunked(COMPLETE, end=False) + b"0\r\nContent-Length: 3\r\n\r\n",
    "another transfer coding": JSON_HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked(COMPLETE),
    "one in a header of its own": JSON_HEAD + b"Transfer-Encoding: gzip\r\n" + CHUNKED + chunked(COMPLETE),
    "one that ends with the connection": JSON_HEAD + b"Transfer-Encoding: gzip\r\n\r\n" + COMPLETE,
    "chunked twice": JSON_HEAD + b"Transfer-Encoding: chunked\r\n" + CHUNKED + chunked(chunked(COMPLETE)),
    "a later version": answer(COMPLETE).replace(b"HTTP/1.1", b"HTTP/7.3"),
}


@pytest.mark.parametrize("name", list(WRONG))
async def test_an_answer_that_is_wrong_is_none_at_once_and_its_connection_is_closed(name):
    gone = []

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await connection.say(WRONG[name])
        await connection.gone()
        gone.append(connection)
        connection.writer.close()

    async with before(post) as (gateway, client):
        await client.say(WHOLE)
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (502, None)
        assert b"garbage" in reply.body
        await eventually(lambda: gone, "the engine sees its connection closed")
        assert 'result="garbage"' in await gateway.metrics()


@pytest.mark.parametrize("name", list(WRONG))
async def test_and_another_engine_may_answer(name):
    wrong = says(WRONG[name], WRONG[name], then="waits")
    async with before(wrong, WELL, retries=RetrySettings(budget=1.0)) as (_, client):
        await answered(client)


@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize(
    "cut",
    [
        JSON_HEAD + b"Content-Length: %d\r\n\r\n" % (len(COMPLETE) + 1) + COMPLETE,
        JSON_HEAD + CHUNKED + chunked(COMPLETE, end=False),
        JSON_HEAD + CHUNKED + chunked(COMPLETE)[:-1],
        JSON_HEAD + LENGTH,
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HT",
    ],
    ids=[
        "a length that is too long",
        "no last chunk",
        "half a last chunk",
        "half a head",
        "only continue",
        "two bytes",
    ],
)
async def test_a_whole_answer_that_breaks_off_is_none(cut, how):
    async with before(says(cut, cut, then=how)) as (gateway, client):
        await client.say(WHOLE)
        reply = await client.reply()
        assert (reply.status, b"(died)" in reply.body) == (502, True)
        assert gateway.lines[0].outcome == "upstream_error"


@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize("framing", ["chunked", "in a chunk", "length"])
async def test_a_stream_that_breaks_off_says_so(framing, how):
    said = {
        "chunked": EVENT_HEAD + CHUNKED + chunked(ROLE, WORD, end=False),
        "in a chunk": EVENT_HEAD + CHUNKED + chunked(ROLE, WORD, WORD, end=False)[:-9],
        "length": EVENT_HEAD + b"Content-Length: 100000\r\n\r\n" + ROLE + WORD,
    }[framing]
    async with before(says(b"", said, then=how)) as (gateway, client):
        await client.say(STREAM + STREAM)
        for _ in range(2):
            reply = await client.reply()
            assert (reply.status, reply.framing) == (200, "chunked")
            assert reply.body.startswith(ROLE + WORD)
            events = reply.body.decode().split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""]
            assert "error" in orjson.loads(events[-3].removeprefix("data: "))
        assert [line.outcome for line in gateway.lines] == ["broken", "broken"]


@pytest.mark.parametrize(
    "said", [b": still here\n\n", b"data", b""], ids=["comments", "half an event", "chunk headers"]
)
async def test_one_that_trickles_for_ever_ends_at_the_total(said):
    """Each byte is progress, so that it is never idle."""

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(EVENT_HEAD + CHUNKED + chunked(ROLE, WORD, end=False) + (b"" if said else b"fff;"))
        with contextlib.suppress(ConnectionError):
            while True:
                await connection.say(chunked(said, end=False) if said else b"a")
                await asyncio.sleep(0.01)

    async with before(post, timeouts=TimeoutSettings(idle=20, total=0.5)) as (gateway, client):
        await client.say(STREAM)
        reply = await client.reply()
        assert reply.body.endswith(DONE)
        assert b"total-timeout" in reply.body
        assert gateway.lines[0].outcome == "broken"


# Answers without end


@pytest.mark.parametrize(
    ("most", "request_bytes", "begins", "goes_on"),
    [
        ("commit.MAX_HELD", STREAM, EVENT_HEAD, b": " + b"x" * 50_000 + b"\n\n"),
        ("answer.MAX_ANSWER", WHOLE, JSON_HEAD, b" " * 50_000),
    ],
    ids=["comments", "a whole answer"],
)
async def test_no_answer_is_held_without_end(most, request_bytes, begins, goes_on, monkeypatch):
    monkeypatch.setattr(f"gateway.proxy.upstream.{most}", 300_000)
    gone = []

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await connection.say(begins + CHUNKED)
            while True:
                await connection.say(chunked(goes_on, end=False))
        gone.append(connection)
        connection.writer.close()

    async with before(post, timeouts=replace(PATIENT, head=10)) as (_, client):
        await client.say(request_bytes)
        reply = await client.reply()
        assert (reply.status, b"(garbage)" in reply.body) == (502, True)
        await eventually(lambda: gone, "the engine sees its connection closed")


async def test_a_whole_answer_is_waited_for_until_the_head_timeout(monkeypatch):
    """However long its engine says nothing in the middle of it: it is of no use before its end."""
    looks, look = [], Deadlines.look

    def counted(self: Deadlines, expired: Callable[[Cause], None], due: float) -> None:
        looks.append(self)
        look(self, expired, due)

    monkeypatch.setattr(Deadlines, "look", counted)

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(JSON_HEAD + LENGTH + b"\r\n" + COMPLETE[:9])
        if b'"waits"' in body:
            await connection.gone()
            connection.writer.close()
        else:
            await eventually(lambda: len(looks) > 2, "it was looked at after twice the idle timeout")
            await connection.say(COMPLETE[9:])

    async with before(post, timeouts=replace(PATIENT, idle=0.2)) as (_, client):
        await client.say(WHOLE)
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, COMPLETE)
    async with before(post, timeouts=replace(PATIENT, head=0.5)) as (_, client):
        await client.say(raw_post(orjson.dumps({**CHAT, "user": "waits"})))
        reply = await client.reply()
        assert (reply.status, b"(head-timeout)" in reply.body) == (504, True)


# Bodies that nobody read, connections that died


@pytest.fixture
def legs(monkeypatch: pytest.MonkeyPatch) -> set[EngineConnection]:
    """The gateway's connections that a leg was sent on, as long as they are open; scrapes keep others."""
    there: set[EngineConnection] = set()
    sent, lost = EngineConnection.send, EngineConnection.connection_lost

    def send(self: EngineConnection, head: bytes, body: bytes, receiver: Receiver) -> None:
        if isinstance(receiver, LegAnswer):
            there.add(self)
        sent(self, head, body, receiver)

    def connection_lost(self: EngineConnection, error: Exception | None) -> None:
        there.discard(self)
        lost(self, error)

    monkeypatch.setattr(EngineConnection, "send", send)
    monkeypatch.setattr(EngineConnection, "connection_lost", connection_lost)
    return there


@pytest.mark.parametrize("how", ["closes", "stands still", "reads it"])
async def test_one_that_answers_before_it_has_read_the_body(how, legs):
    """Its connection is no good for another request: it may take what is left of this one for the next."""
    refusal = b'{"error": {"message": "too large", "code": 413}}'
    over = asyncio.Event()

    async def refuses(connection: Connection, head: bytes) -> bool:
        if (left := length_in(head)) < 1_000_000:
            return False
        await connection.say(answer(refusal, status="413 Content Too Large"))
        while how == "reads it" and left > 0 and (data := await connection.reader.read(65536)):
            left -= len(data)
        if how == "stands still":
            await over.wait()
        return True

    async with ScriptedEngine(says(answer(COMPLETE), b""), at_head=refuses) as server:
        config = config_for(server.url, timeouts=PATIENT, retries=NOT_AGAIN)
        async with running(config) as gateway, raw_client(gateway.url) as client:
            long = [{"role": "user", "content": "x" * 20_000_000}]
            await client.say(raw_post(orjson.dumps({**CHAT, "messages": long})))
            reply = await client.reply()
            assert (reply.status, reply.body) == (413, refusal)
            await eventually(lambda: not legs, "the connection is closed", within=30)
            await client.say(WHOLE)
            assert (await client.reply()).body == COMPLETE
            await eventually(gateway.idle, "nothing stays booked")
            over.set()


async def test_a_connection_that_died_idle_is_replaced_and_nobody_notices():
    asked: list[int] = []

    async def dies_after_one(connection: Connection, head: bytes, body: bytes) -> None:
        if connection.number in asked:
            connection.reset()  # it had closed already, and this request crossed its farewell
            return
        asked.append(connection.number)
        await connection.say(answer(COMPLETE))

    async with before(dies_after_one) as (gateway, client):
        for _ in range(3):
            await client.say(WHOLE)
            assert (await client.reply()).body == COMPLETE
        assert len(asked) == 3
        assert [line.attempts for line in gateway.lines] == [1, 1, 1]
        assert not gateway.down(
            gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)[0].engine.url
        )
