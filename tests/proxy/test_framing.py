"""Covers: gateway/proxy/http/server.py, gateway/proxy/http/reply.py.

Clients of every manner of HTTP: what ends an answer, and what the connection is good for after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.proxy.settings import KeySettings, ListenSettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, RawClient, answer, chunked, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

WHOLE = orjson.dumps(CHAT)
STREAM = orjson.dumps(STREAMED)
EVENTS = ROLE + WORD + DONE
ERROR = b'{"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}'


async def by_name(connection: Connection, head: bytes, body: bytes) -> None:
    """Answers by what the request's ``user`` asks for, else as it is asked."""
    asked = orjson.loads(body)
    said = {
        "400": answer(ERROR, status="400 Bad Request"),
        "503": answer(ERROR, status="503 Service Unavailable"),
        "204": b"HTTP/1.1 204 No Content\r\n\r\n",
        "empty": answer(b""),
    }.get(asked.get("user", ""))
    if said is None:
        said = STREAM_HEAD + chunked(ROLE, WORD, DONE) if asked.get("stream") else answer(COMPLETE)
    await connection.say(said)


@contextlib.asynccontextmanager
async def served(**changes: object) -> AsyncIterator[tuple[Running, RawClient]]:
    async with ScriptedEngine(by_name) as server, running(config_for(server.url, **changes)) as gateway:
        async with raw_client(gateway.url) as client:
            yield gateway, client


def with_user(name: str, body: dict[str, object] = CHAT) -> bytes:
    return orjson.dumps({**body, "user": name})


def get(path: str, *headers: bytes, method: str = "GET") -> bytes:
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), b"Host: gateway", *headers]) + b"\r\n\r\n"


ANSWERS = {
    "whole": (raw_post(WHOLE), 200, COMPLETE, "length"),
    "streamed": (raw_post(STREAM), 200, EVENTS, "chunked"),
    "an engine's error": (raw_post(with_user("400")), 400, ERROR, "length"),
    "an engine's error to a stream": (raw_post(with_user("400", STREAMED)), 400, ERROR, "length"),
    "an engine's refusal": (raw_post(with_user("503")), 503, ERROR, "length"),
    "no content": (raw_post(with_user("204")), 204, b"", "none"),
    "an empty body": (raw_post(with_user("empty")), 200, b"", "length"),
    "no such model": (raw_post(orjson.dumps({**CHAT, "model": "x"})), 404, None, "length"),
    "no JSON": (raw_post(b"{"), 400, None, "length"),
    "no such path": (raw_post(WHOLE, path="/nowhere"), 404, None, "length"),
    "no such method": (get("/v1/chat/completions"), 405, None, "length"),
    "health": (get("/health"), 200, b'{"status":"ok"}', "length"),
    "models": (get("/v1/models"), 200, None, "length"),
}


@pytest.mark.parametrize("name", list(ANSWERS))
async def test_the_connection_goes_on_after_each_kind_of_answer(name):
    said, status, body, framing = ANSWERS[name]
    async with served() as (gateway, client):
        for _ in range(2):
            await client.say(said)
            reply = await client.reply()
            assert (reply.version, reply.status, reply.framing) == ("HTTP/1.1", status, framing)
            assert body is None or reply.body == body
            assert reply.header("connection") is None
            await client.say(raw_post(STREAM))
            assert (await client.reply()).body == EVENTS
        await eventually(gateway.idle, "nothing stays booked")


async def test_requests_that_come_at_once_are_answered_in_their_order():
    names = ["streamed", "whole", "an engine's error", "no such model", "streamed", "models", "no content", "whole"]
    async with served() as (gateway, client):
        await client.say(b"".join(ANSWERS[name][0] for name in names))
        for name in names:
            _, status, body, framing = ANSWERS[name]
            reply = await client.reply()
            assert (name, reply.status, reply.framing) == (name, status, framing)
            assert body is None or reply.body == body
        await client.say(raw_post(WHOLE, b"Connection: close"))
        assert (await client.reply()).body == COMPLETE
        assert await client.ended() == b""
        assert len([line for line in gateway.lines if line.outcome in ("ok", "engine_error")]) == 7


async def test_a_request_may_come_one_byte_at_a_time():
    async with served() as (_, client):
        for byte in raw_post(STREAM) + raw_post(WHOLE):
            await client.say(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.reply()).body == EVENTS
        assert (await client.reply()).body == COMPLETE


@pytest.mark.parametrize("cut", ["\r\n", "\n\r\n", "3\r\n", "{"])
async def test_a_chunked_body_may_be_cut_anywhere(cut):
    body = b"".join(b"%x;name=value\r\n%b\r\n" % (len(part), part) for part in (STREAM[:3], STREAM[3:])) + b"0\r\n\r\n"
    request = raw_post(body, b"Transfer-Encoding: chunked", length=None)
    first, middle, last = request.rpartition(cut.encode())
    async with served() as (_, client):
        for part in (first + middle[:1], middle[1:] + last):
            await client.say(part)
            await asyncio.sleep(0)
        assert (await client.reply()).body == EVENTS
        assert await client.ended() == b""


BROKEN = raw_post(chunked(WHOLE, end=False), b"Transfer-Encoding: chunked", length=None), b"not a size\r\n"


async def test_a_chunked_body_that_breaks_its_framing_is_refused_when_it_does():
    async with served() as (gateway, client):
        await client.say(BROKEN[0])
        await eventually(lambda: gateway.gateway.doors.server.in_progress == 1, "its body is waited for")
        await client.say(BROKEN[1])
        reply = await client.reply()
        assert reply.status == 400
        said = orjson.loads(reply.body)["error"]["message"]
        assert said == "The body is not what its headers say: Invalid character in chunk size"
        await client.say(raw_post(WHOLE))  # is dropped: nobody knows where a request would begin
        assert await client.ended() == b""
        await eventually(gateway.idle, "nothing stays booked")
        assert [line.outcome for line in gateway.lines] == ["client_error"]


async def test_the_rest_of_a_refused_body_may_break_its_framing():
    async with served(client_keys=KeySettings(values=("key",))) as (gateway, client):
        await client.say(BROKEN[0])
        assert (await client.reply()).status == 401
        await client.say(BROKEN[1] + raw_post(WHOLE))
        assert await client.ended() == b""
        assert [line.outcome for line in gateway.lines] == ["unauthorized"]


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "streamed"])
async def test_a_connection_that_its_client_wants_closed_is_closed(body):
    async with served() as (_, client):
        await client.say(raw_post(body, b"Connection: close"))
        reply = await client.reply()
        assert reply.header("connection") == "close"
        assert reply.framing == ("chunked" if body is STREAM else "length")
        assert reply.body == (EVENTS if body is STREAM else COMPLETE)
        assert await client.ended() == b""


@pytest.mark.parametrize("keep", [b"Connection: keep-alive", b"X: y"], ids=["kept", "closed"])
@pytest.mark.parametrize("name", ["whole", "an engine's error", "no such model"])
async def test_http_1_0_has_a_length_where_there_is_one(name, keep):
    body = {"whole": WHOLE, "an engine's error": with_user("400"), "no such model": b'{"model":"x","messages":[{}]}'}[
        name
    ]
    async with served() as (_, client):
        for _ in range(2 if keep.endswith(b"keep-alive") else 1):
            await client.say(raw_post(body, keep, version="HTTP/1.0"))
            reply = await client.reply()
            assert (reply.version, reply.status, reply.framing) == ("HTTP/1.0", ANSWERS[name][1], "length")
            assert reply.header("connection") == (
                "keep-alive" if keep.endswith(b"keep-alive") else reply.header("connection")
            )
        if not keep.endswith(b"keep-alive"):
            assert await client.ended() == b""


@pytest.mark.parametrize("keep", [b"Connection: keep-alive", b"X: y"], ids=["kept", "closed"])
async def test_a_stream_to_http_1_0_ends_with_its_connection(keep):
    async with served() as (gateway, client):
        await client.say(raw_post(STREAM, keep, version="HTTP/1.0"))
        reply = await client.reply()
        assert (reply.version, reply.framing, reply.body) == ("HTTP/1.0", "close", EVENTS)
        assert reply.header("connection") == "close"
        await eventually(gateway.idle, "nothing stays booked")


@pytest.mark.parametrize("version", ["HTTP/2.0", "HTTP/0.9"])
async def test_a_version_that_is_not_spoken_here_is_refused_in_one_that_is(version):
    """llhttp lets these two through."""
    async with served() as (_, client):
        await client.say(raw_post(STREAM, version=version))
        reply = await client.reply()
        assert (reply.version, reply.status, reply.framing) == ("HTTP/1.1", 505, "length")
        assert await client.ended() == b""


@pytest.mark.parametrize("version", ["HTTP/1.2", "HTTP/3.7", "HTTP/11", "http/1.1", "ICE/1.0"])
async def test_other_versions_are_refused(version):
    async with served() as (gateway, client):
        await client.say(raw_post(STREAM, version=version))
        assert (await client.reply()).status == 400
        assert await client.ended() == b""
        assert not gateway.lines


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/version", "/v1/models", "/nowhere"])
async def test_what_answers_head_has_no_body(path):
    async with served() as (_, client):
        await client.say(get(path, method="HEAD") + get("/health"))
        reply = await client.reply(head_only=True)
        assert reply.status == (404 if path == "/nowhere" else 200)
        assert (await client.reply()).body == b'{"status":"ok"}'


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "streamed"])
async def test_a_client_that_waits_for_100_continue(body):
    async with served() as (_, client):
        for _ in range(2):
            request = raw_post(body, b"Expect: 100-continue")
            await client.say(request.removesuffix(body))
            assert (await client.reply()).status == 100
            await client.say(body)
            assert (await client.reply()).body == (EVENTS if body is STREAM else COMPLETE)
        await client.say(raw_post(body, b"Expect: 100-continue") + raw_post(WHOLE))  # without waiting for it
        assert [(await client.reply()).status for _ in range(3)] == [100, 200, 200]


async def test_a_client_that_waits_for_100_continue_may_be_refused():
    async with served(listen=ListenSettings(max_body=10)) as (_, client):
        await client.say(raw_post(WHOLE, b"Expect: 100-continue").removesuffix(WHOLE))
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (413, "close")


@pytest.mark.parametrize(
    "headers",
    [
        (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
        (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    ],
    ids=["h2c", "websocket"],
)
async def test_an_upgrade_is_declined(headers):
    """Java's client asks for HTTP/2 with its first request, with a body and all."""
    async with served() as (_, client):
        for _ in range(2):
            await client.say(raw_post(STREAM, *headers))
            assert (await client.reply()).body == EVENTS
            await client.say(raw_post(WHOLE))
            assert (await client.reply()).body == COMPLETE


def padded(size: int) -> bytes:
    return WHOLE + b" " * (size - len(WHOLE))


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("more", [0, 1])
async def test_a_body_of_exactly_the_limit_and_one_byte_more(framing, more):
    body = padded(300_000 + more)
    if framing == "length":
        said = raw_post(body)
    else:
        said = raw_post(
            chunked(body[:100_000], body[100_000:-1], body[-1:]), b"Transfer-Encoding: chunked", length=None
        )
    async with served(listen=ListenSettings(max_body=300_000)) as (gateway, client):
        sending = asyncio.get_running_loop().create_task(client.say(said))
        reply = await client.reply()
        assert reply.status == (413 if more else 200)
        with contextlib.suppress(ConnectionError):
            await sending
        if not more and framing == "length":
            await client.say(raw_post(WHOLE))
            assert (await client.reply()).body == COMPLETE
        await eventually(gateway.idle, "nothing stays booked")


@pytest.mark.parametrize("size", [65_000, 66_000])
async def test_headers_of_64_kb_pass_and_longer_ones_do_not(size):
    async with served() as (gateway, client):
        await client.say(raw_post(WHOLE, b"X-Baggage: " + b"a" * size))
        reply = await client.reply()
        assert reply.status == (200 if size < 65_536 else 431)
        assert len(gateway.lines) == (size < 65_536)


async def test_a_refused_request_does_not_leave_its_body_behind_as_the_next():
    hidden = raw_post(WHOLE)
    async with served(client_keys=KeySettings(values=("key",))) as (gateway, client):
        await client.say(raw_post(hidden) + raw_post(WHOLE, b"Authorization: Bearer key"))
        assert (await client.reply()).status == 401
        assert (await client.reply()).body == COMPLETE
        await client.say(get("/health", b"Content-Length: %d" % len(hidden)) + hidden + get("/version"))
        assert (await client.reply()).body == b'{"status":"ok"}'
        assert b"version" in (await client.reply()).body
        assert [line.outcome for line in gateway.lines] == ["unauthorized", "ok"]
