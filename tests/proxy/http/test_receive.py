"""Bodies that come zipped, through a gateway: what the engine gets, what is refused, and at whose cost."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator

import orjson
import pytest
from aiohttp import http_parser

from gateway.proxy.settings import ListenSettings
from tests.support.chat import CHAT, COMPLETE
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import RawClient, answer, chunked, raw_client, raw_post

CHAT_PATH = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def asked_engine(**changes: object) -> AsyncIterator[tuple[Running, RawClient, list[tuple[bytes, bytes]]]]:
    """A gateway, a connection to it, and the requests that reached its engine."""
    asked: list[tuple[bytes, bytes]] = []

    async def post(connection, head, body):
        asked.append((head, body))
        await connection.say(answer(COMPLETE))

    async with ScriptedEngine(post) as server, running(config_for(server.url, **changes)) as gateway:
        async with raw_client(gateway.url) as client:
            yield gateway, client, asked


async def test_a_zipped_body_is_read_and_a_bomb_is_not():
    async with asked_engine(listen=ListenSettings(max_body=100_000)) as (gateway, _, asked):
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        good = await gateway.client.post(CHAT_PATH, content=gzip.compress(orjson.dumps(CHAT)), headers=headers)
        assert good.status_code == 200
        assert asked[0][1] == orjson.dumps(CHAT)
        assert b"content-encoding" not in asked[0][0].lower()
        bomb = await gateway.client.post(CHAT_PATH, content=gzip.compress(b"x" * 50_000_000), headers=headers)
        assert bomb.status_code == 413
        broken = await gateway.client.post(CHAT_PATH, content=b"no gzip", headers=headers)
        assert broken.status_code == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/nowhere", "/livez"])
async def test_a_body_that_is_not_the_gzip_that_it_claims_costs_no_connection_and_no_traceback(path, caplog):
    """aiohttp's own unzipping fails it where nobody listens: in what reads a refused body away."""
    said = raw_post(b"{}\n", b"Content-Encoding: gzip", path=path)
    async with asked_engine() as (_, client, asked):
        for _ in range(2):
            await client.say(said)
            reply = await client.reply()
            assert reply.status == (400 if path == CHAT_PATH else 404)
            assert reply.header("connection") is None
        assert not asked
    assert "Traceback" not in caplog.text
    assert "Unhandled" not in caplog.text


async def test_what_is_read_away_of_a_refused_body_is_not_unzipped(monkeypatch):
    """A gigabyte in a megabyte would stop the event loop for seconds, after the answer, whoever sent it."""
    monkeypatch.setattr(http_parser.DeflateBuffer, "feed_data", lambda *_: pytest.fail("it is unzipped"))
    said = raw_post(gzip.compress(b"x" * 50_000_000), b"Content-Encoding: gzip", path="/nowhere")
    async with asked_engine() as (_, client, _):
        await client.say(said[:1000])
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (404, "close")
        await client.say(said[1000:])
        assert await client.ended() == b""


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (raw_post(b"hello", b"Content-Encoding: br"), 415),
        (raw_post(b"hello", b"Content-Encoding: zstd"), 415),
        (raw_post(gzip.compress(gzip.compress(b"{}")), b"Content-Encoding: gzip, gzip"), 415),
        (raw_post(gzip.compress(b"{}")[:-1] + b"x", b"Content-Encoding: gzip"), 400),
        (raw_post(gzip.compress(b"{}") + b"x", b"Content-Encoding: gzip"), 400),
        (raw_post(gzip.compress(b"{}")[:-1], b"Content-Encoding: gzip"), 400),
    ],
)
async def test_a_zipped_body_that_cannot_be_read_is_refused_and_the_remedy_told(said, status):
    async with asked_engine() as (_, client, asked):
        await client.say(said)
        reply = await client.reply()
        assert reply.status == status
        assert "content-encoding" in orjson.loads(reply.body)["error"]["message"]
        assert not asked


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "deflate", "identity"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_each_coding_that_is_taken_reaches_the_engine_plain(coding, framing):
    plain = orjson.dumps({**CHAT, "user": "x" * 100_000})
    zipped = {"deflate": zlib.compress, "identity": bytes}.get(coding, gzip.compress)(plain)
    encoded = f"Content-Encoding: {coding}".encode()
    if framing == "length":
        said = raw_post(zipped, encoded)
    else:
        halves = chunked(zipped[:100], zipped[100:])
        said = raw_post(halves, encoded, b"Transfer-Encoding: chunked", length=None)
    async with asked_engine() as (_, client, asked):
        await client.say(said)
        assert (await client.reply()).status == 200
        head, body = asked[0]
        assert body == plain
        assert b"content-encoding" not in head.lower()
        assert b"content-length: %d\r\n" % len(plain) in head.lower()


async def test_a_zipped_body_is_refused_as_soon_as_it_is_too_large():
    zipped = gzip.compress(b"x" * 1_000_000)
    said = raw_post(zipped[:-10], b"Content-Encoding: gzip", length=b"%d" % len(zipped))
    async with asked_engine(listen=ListenSettings(max_body=100_000)) as (_, client, _):
        await client.say(said)
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (413, "close")


async def test_an_operators_question_may_be_zipped():
    body = gzip.compress(orjson.dumps(CHAT))
    async with asked_engine() as (gateway, _, _):
        reply = await gateway.client.post(
            f"{gateway.admin_url}/debug/explain", content=body, headers={"Content-Encoding": "gzip"}
        )
        assert reply.status_code == 200, reply.text
