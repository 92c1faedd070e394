"""Covers: gateway/proxy/upstream/commit.py, gateway/proxy/serving/relay.py.

Answers that come compressed pass as they came, and are counted as if they had not been.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Iterable

import orjson
import pytest

from gateway.proxy.settings import RetrySettings, TimeoutSettings
from gateway.proxy.upstream.commit import MAX_TEXT
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, TELLING, WORD
from tests.support.gateway import IN_TURN, PATIENT, Running, config_for, running
from tests.support.scripted_engine import Post, ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import Connection, RawClient, answer, chunked, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

ASKS = b"Accept-Encoding: gzip, deflate, br"
WHOLE, STREAM = (raw_post(orjson.dumps(body), ASKS) for body in (CHAT, TELLING))
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
LAST = b"data: " + orjson.dumps({"id": "chatcmpl-1", "choices": [], "usage": USAGE}) + b"\n\n"
EVENTS = [ROLE, WORD, WORD, WORD, LAST, DONE]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"

WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def coding(name: str) -> bytes:
    return b"Content-Encoding: %b\r\n" % name.encode()


def packed(parts: Iterable[bytes], name: str, *, flush: bool) -> list[bytes]:
    """What comes of each part, and of the end. ``flush``: all of a part comes with it."""
    deflate = zlib.compressobj(wbits=WINDOWS[name])
    said = [deflate.compress(part) + (deflate.flush(zlib.Z_SYNC_FLUSH) if flush else b"") for part in parts]
    return [part for part in (*said, deflate.flush()) if part]


def unpacked(body: bytes, name: str) -> bytes:
    inflate = zlib.decompressobj(WINDOWS[name])
    text = inflate.decompress(body)
    assert inflate.eof
    return text


def says(data: bytes, *, then: Callable[[Connection], object] | None = None) -> Post:
    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(data)
        if then is not None:
            then(connection)

    return post


@contextlib.asynccontextmanager
async def before(*posts: Post, **changes: object) -> AsyncIterator[tuple[Running, RawClient]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(ScriptedEngine(post))).url for post in posts]
        changes = {"timeouts": PATIENT, "retries": RetrySettings(attempts=len(posts), budget=1.0)} | IN_TURN | changes
        gateway = await stack.enter_async_context(running(config_for(*urls, **changes)))
        yield gateway, await stack.enter_async_context(raw_client(gateway.url))
        await eventually(gateway.idle, "nothing stays booked")


def says_apart(said: bytes, cut: bool):
    """An engine that says it as it is, or ``cut``, byte by byte."""

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say_apart([said] if not cut else (bytes((byte,)) for byte in said))

    return post


@pytest.mark.parametrize("flush", [True, False], ids=["flushed", "unflushed"])
@pytest.mark.parametrize("name", ["gzip", "deflate"])
@pytest.mark.parametrize("cut", [False, True], ids=["as it is", "byte by byte"])
async def test_a_compressed_stream_passes_and_is_counted(cut, name, flush):
    said = STREAM_HEAD + coding(name) + b"\r\n" + chunked(*packed(EVENTS, name, flush=flush))
    async with before(says_apart(said, cut)) as (gateway, client):
        for _ in range(2):
            await client.say(STREAM)
            reply = await client.reply()
            assert (reply.status, reply.header("content-encoding"), reply.framing) == (200, name, "chunked")
            assert unpacked(reply.body, name) == b"".join(EVENTS)
        line = gateway.lines[-1]
        assert (line.outcome, line.output_tokens, line.reported_prompt_tokens) == ("ok", 3, 7)


@pytest.mark.parametrize("name", ["gzip", "deflate"])
async def test_a_compressed_body_passes_and_its_usage_is_read(name):
    said = b"".join(packed([COMPLETE], name, flush=False))
    async with before(says(answer(said, extra=coding(name)))) as (gateway, client):
        for _ in range(2):
            await client.say(WHOLE)
            reply = await client.reply()
            assert (reply.header("content-encoding"), reply.body) == (name, said)
        line = gateway.lines[-1]
        assert (line.outcome, line.output_tokens, line.reported_prompt_tokens) == ("ok", 1, 4)


@pytest.mark.parametrize("first", [b"", b": hello\n\n"], ids=["events", "a comment before them"])
@pytest.mark.parametrize("cut", [False, True], ids=["as it is", "byte by byte"])
async def test_a_stream_of_a_member_for_each_event_passes_and_is_counted(cut, first):
    """Of gzip; RFC 1952, section 2.2. The first may hold no event at all."""
    members = [gzip.compress(part) for part in (first, *EVENTS)]
    said = STREAM_HEAD + coding("gzip") + b"\r\n" + chunked(*members)
    async with before(says_apart(said, cut)) as (gateway, client):
        for _ in range(2):
            await client.say(STREAM)
            reply = await client.reply()
            assert (reply.status, reply.body) == (200, b"".join(members))
        line = gateway.lines[-1]
        assert (line.outcome, line.output_tokens, line.reported_prompt_tokens) == ("ok", 3, 7)


async def test_a_body_of_several_members_passes_and_its_usage_is_read():
    said = b"".join(gzip.compress(COMPLETE[at : at + 20]) for at in range(0, len(COMPLETE), 20))
    async with before(says(answer(said, extra=coding("gzip")))) as (gateway, client):
        await client.say(WHOLE)
        assert (await client.reply()).body == said
        assert (gateway.lines[0].outcome, gateway.lines[0].reported_prompt_tokens) == ("ok", 4)


async def test_a_body_that_is_too_long_to_be_read_passes_unread():
    """Its usage is not worth to hold up everybody else."""
    said = gzip.compress(COMPLETE[:-1] + b" " * (2 * MAX_TEXT) + COMPLETE[-1:])
    async with before(says(answer(said, extra=coding("gzip")))) as (gateway, client):
        for _ in range(2):
            await client.say(WHOLE)
            assert (await client.reply()).body == said
        assert [(line.outcome, line.reported_prompt_tokens) for line in gateway.lines] == [("ok", None)] * 2


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (b"gzip, deflate, br", "gzip, deflate"),
        (b"gzip;q=0, deflate;q=0.5", "deflate;q=0.5"),
        (b"br, zstd", None),
        (b"*", None),
        (b"identity", None),
        (b"", None),
        (None, None),
    ],
)
async def test_engines_are_asked_for_what_can_be_read_along(asked, wanted):
    heads: list[bytes] = []

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        heads.append(head.lower())
        await connection.say(answer(COMPLETE))

    async with before(post) as (_, client):
        headers = [] if asked is None else [b"Accept-Encoding: " + asked]
        await client.say(raw_post(orjson.dumps(CHAT), *headers))
        assert (await client.reply()).body == COMPLETE
    line = [line for line in heads[0].split(b"\r\n") if line.startswith(b"accept-encoding:")]
    assert line == ([] if wanted is None else [f"accept-encoding: {wanted}".encode()])


BROKEN = {
    "no gzip at all": coding("gzip") + b"\r\n" + chunked(*EVENTS),
    "broken from the start": coding("gzip") + b"\r\n" + chunked(b"\x1f\x8b\x08" + b"\xff" * 200),
    "a coding that nobody asked for": coding("br") + b"\r\n" + chunked(b"\x0b\x02\x80data\x03"),
    "no gzip behind a comment that is": coding("gzip") + b"\r\n" + chunked(gzip.compress(b": hello\n\n"), *EVENTS),
    "two codings": coding("gzip, gzip") + b"\r\n" + chunked(gzip.compress(gzip.compress(b"".join(EVENTS)))),
}


@pytest.mark.parametrize("name", list(BROKEN))
async def test_a_stream_that_cannot_be_read_is_no_answer(name):
    well = says(STREAM_HEAD + b"\r\n" + chunked(*EVENTS))
    async with before(says(STREAM_HEAD + BROKEN[name])) as (gateway, client):
        await client.say(STREAM)
        reply = await client.reply()
        assert (reply.status, b"(garbage)" in reply.body, reply.header("content-encoding")) == (502, True, None)
        assert gateway.lines[0].outcome == "upstream_error"
    async with before(says(STREAM_HEAD + BROKEN[name]), well) as (_, client):
        for _ in range(2):
            await client.say(STREAM)
            assert (await client.reply()).body == b"".join(EVENTS)


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("how", ["corrupt", "closed", "reset", "idle"])
async def test_one_that_breaks_after_commit_is_cut_visibly(how, version):
    """Nothing can be said in the middle of it. To HTTP/1.0, whose body ends with the connection, it is what is packed
    that has no end."""
    begun = packed(EVENTS, "gzip", flush=True)[:2]
    said = STREAM_HEAD + coding("gzip") + b"\r\n" + chunked(*begun, end=False)

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(said)
        await come.wait()
        if how == "corrupt":
            await connection.say(chunked(b"\xff" * 100))
        if how == "reset":
            connection.reset()
        elif how == "idle":
            await connection.gone()
        connection.writer.close()

    come = asyncio.Event()
    async with before(post, timeouts=TimeoutSettings(idle=0.5)) as (gateway, client):
        await client.say(raw_post(orjson.dumps(TELLING), ASKS, version=version))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"content-encoding: gzip" in head
        rest = b""
        while b"".join(begun)[-8:] not in rest:
            rest += await client.reader.read(1000)
        come.set()
        rest += await client.ended()
        assert not rest.endswith(b"0\r\n\r\n")
        if version == "HTTP/1.0":
            inflate = zlib.decompressobj(WINDOWS["gzip"])
            assert inflate.decompress(rest) == ROLE + WORD
            assert not inflate.eof
        assert b"error" not in rest
        await eventually(lambda: gateway.lines, "the request is settled")
        assert gateway.lines[0].outcome == "broken"


@pytest.mark.parametrize("body", [b"no gzip", gzip.compress(COMPLETE)[:-9], b""], ids=["none", "cut", "empty"])
async def test_a_body_that_cannot_be_read_passes_unread(body):
    async with before(says(answer(body, extra=coding("gzip")))) as (gateway, client):
        for _ in range(2):
            await client.say(WHOLE)
            reply = await client.reply()
            assert (reply.status, reply.header("content-encoding"), reply.body) == (200, "gzip", body)
        assert [line.outcome for line in gateway.lines] == ["ok", "ok"]


async def test_an_engines_error_passes_compressed():
    error = gzip.compress(b'{"error": {"message": "too long", "code": 400}}')
    async with before(says(answer(error, status="400 Bad Request", extra=coding("gzip")))) as (gateway, client):
        for said in (WHOLE, STREAM):
            await client.say(said)
            reply = await client.reply()
            assert (reply.status, reply.header("content-encoding"), reply.body) == (400, "gzip", error)
        assert [line.outcome for line in gateway.lines] == ["engine_error", "engine_error"]


async def test_an_engine_that_says_compressed_that_it_is_dead_is_believed():
    dead = b'{"error": {"message": "EngineCore encountered an issue.", "code": 500}}'
    whole = answer(gzip.compress(dead + bytes(2 * MAX_TEXT)), status="500 Internal Server Error", extra=coding("gzip"))
    streamed = STREAM_HEAD + coding("gzip") + b"\r\n" + chunked(gzip.compress(b"data: " + dead + b"\n\n" + DONE))
    for said, request in ((whole, WHOLE), (streamed, STREAM)):
        async with before(says(said)) as (gateway, client):
            await client.say(request)
            assert (await client.reply()).status in (500, 502)
            assert 'result="engine-dead"' in await gateway.metrics()
