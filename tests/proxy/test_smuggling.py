"""Covers: gateway/proxy/http/heads.py, gateway/proxy/http/server.py.

Requests that one parser may read as one and another as two: each is refused or made plain, and what is hidden in one
is never asked of an engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest

from tests.support.chat import CHAT, COMPLETE
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import Connection, RawClient, answer, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

BODY = orjson.dumps({**CHAT, "user": "open"})
HIDDEN = raw_post(orjson.dumps({**CHAT, "user": "hidden"}), b"X-Trace: hidden")
BEHIND = raw_post(orjson.dumps({**CHAT, "user": "behind"}), b"X-Trace: behind")
START = b"POST /v1/chat/completions HTTP/1.1\r\n"


class IncomingRequest:
    """An engine that keeps what it was asked, read strictly: one Host, one Content-Length, nothing that is folded."""

    def __init__(self) -> None:
        self.users: list[str] = []
        self.traces: list[str | None] = []

    async def __call__(self, connection: Connection, head: bytes, body: bytes) -> None:
        start, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        assert start == START.strip()
        assert not any(set(line) & set(b"\r\n\0") or line[:1] in b" \t" for line in lines), head
        headers = [(name.lower(), value.strip()) for name, value in (line.split(b":", 1) for line in lines)]
        names = [name for name, _ in headers]
        for name in (b"host", b"content-length", b"content-type", b"x-request-id"):
            assert names.count(name) == 1, (name, head)
        assert not {b"transfer-encoding", b"connection", b"te", b"trailer", b"upgrade", b"expect"} & set(names), head
        assert dict(headers)[b"host"] == b"127.0.0.1:%d" % connection.writer.get_extra_info("sockname")[1]
        self.users.append(orjson.loads(body)["user"])
        self.traces.append(dict(headers).get(b"x-trace", b"").decode() or None)
        await connection.say(answer(COMPLETE))


@contextlib.asynccontextmanager
async def guarded() -> AsyncIterator[tuple[Running, RawClient, IncomingRequest]]:
    asked = IncomingRequest()
    async with ScriptedEngine(asked) as server, running(config_for(server.url)) as gateway:
        async with raw_client(gateway.url) as client:
            yield gateway, client, asked
        await eventually(gateway.idle, "nothing stays booked")


def framed(*headers: bytes, start: bytes = START, body: bytes = BODY) -> bytes:
    return start + b"\r\n".join([b"Host: gateway", *headers]) + b"\r\n\r\n" + body


LENGTH = b"Content-Length: %d" % len(BODY)
BOTH = b"Content-Length: %d" % len(BODY + HIDDEN)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
TE = b"Transfer-Encoding: "

REFUSED = {
    "both length headers": framed(LENGTH, TE + b"chunked", body=CHUNKED + HIDDEN),
    "both, the other way": framed(TE + b"chunked", LENGTH, body=CHUNKED + HIDDEN),
    "two lengths that differ": framed(LENGTH, BOTH, body=BODY + HIDDEN),
    "the same length twice": framed(LENGTH, LENGTH),
    "lengths in a list": framed(LENGTH + b", %d" % len(BODY)),
    "a length with a sign": framed(b"Content-Length: +%d" % len(BODY)),
    "a negative length": framed(b"Content-Length: -%d" % len(BODY)),
    "a length in hex": framed(b"Content-Length: 0x%x" % len(BODY)),
    "a length with an underscore": framed(b"Content-Length: 1_0"),
    "a length with a blank inside": framed(b"Content-Length: 1 0"),
    "a length beyond 64 bits": framed(b"Content-Length: %d" % (2**64 + len(BODY))),
    "an empty length": framed(b"Content-Length: "),
    "xchunked": framed(TE + b"xchunked", body=CHUNKED + HIDDEN),
    "chunked, identity": framed(TE + b"chunked, identity", body=CHUNKED + HIDDEN),
    "identity": framed(TE + b"identity", body=CHUNKED + HIDDEN),
    "gzip alone": framed(TE + b"gzip", body=CHUNKED + HIDDEN),
    "chunked in quotes": framed(TE + b'"chunked"', body=CHUNKED + HIDDEN),
    "chunked with a parameter": framed(TE + b"chunked;q=1", body=CHUNKED + HIDDEN),
    "a vertical tab before chunked": framed(TE + b"\x0bchunked", body=CHUNKED + HIDDEN),
    "a space before the colon": framed(b"Transfer-Encoding : chunked", LENGTH, body=CHUNKED + HIDDEN),
    "a tab before the colon": framed(b"Content-Length\t: %d" % len(BODY)),
    "a space before the name": framed(b"X: y", b" Content-Length: %d" % len(BODY)),
    "a name of nothing": framed(LENGTH, b": value"),
    "a line without a colon": framed(LENGTH, b"X-Trace"),
    "a folded line": framed(LENGTH, b"X-Trace: one", b" two"),
    "a folded transfer-encoding": framed(b"Transfer-Encoding:", b" chunked", LENGTH, body=CHUNKED + HIDDEN),
    "a CR inside of a value": framed(LENGTH, b"X-Trace: a\rTransfer-Encoding: chunked"),
    "a NUL inside of a value": framed(LENGTH, b"X-Trace: a\0b"),
    "a NUL inside of a name": framed(LENGTH, b"X-\0Trace: a"),
    "a bare LF behind a header": framed(LENGTH + b"\nX-Trace: a"),
    "bare LFs throughout": framed(LENGTH).replace(b"\r\n", b"\n"),
    "a bare LF behind the request line": framed(LENGTH, start=START.strip() + b"\n"),
    "two hosts": framed(b"Host: other", LENGTH),
    "no host": framed(LENGTH).replace(b"Host: gateway\r\n", b""),
    "a target of nothing": framed(LENGTH, start=b"POST HTTP/1.1\r\n"),
    "two targets": framed(LENGTH, start=b"POST /v1/chat/completions /v1/models HTTP/1.1\r\n"),
    "a chunk's size with a sign": framed(TE + b"chunked", body=b"+" + CHUNKED),
    "a chunk's size in 0x": framed(TE + b"chunked", body=b"0x" + CHUNKED),
    "a chunk's size beyond 64 bits": framed(TE + b"chunked", body=b"1" + b"0" * 16 + CHUNKED),
    "a blank behind a chunk's size": framed(TE + b"chunked", body=CHUNKED.replace(b"\r\n", b" \r\n", 1)),
    "a bare LF behind a chunk's size": framed(TE + b"chunked", body=CHUNKED.replace(b"\r\n", b"\n", 1)),
    "a bare LF in a chunk's extension": framed(TE + b"chunked", body=CHUNKED.replace(b"\r\n", b";a=\nb\r\n", 1)),
    "a chunk that is longer than it says": framed(TE + b"chunked", body=b"5\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "transfer-encoding in HTTP/1.0 with a length": framed(
        LENGTH, TE + b"chunked", start=START.replace(b"1.1", b"1.0"), body=CHUNKED + HIDDEN
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
async def test_what_is_ambiguous_is_refused_and_nothing_behind_it_is_read(name):
    async with guarded() as (gateway, client, asked):
        await client.say(REFUSED[name] + BEHIND)
        reply = await client.reply()
        assert reply.status == 400, reply
        assert await client.ended() == b""
        assert asked.users == []
        async with raw_client(gateway.url) as other:
            await other.say(BEHIND)
            assert (await other.reply()).body == COMPLETE
        assert asked.users == ["behind"]


NOT_IMPLEMENTED = {
    "gzip, chunked": (501, framed(TE + b"gzip, chunked", body=CHUNKED + HIDDEN)),
    "identity, chunked": (501, framed(TE + b"identity, chunked", body=CHUNKED + HIDDEN)),
    "gzip and chunked on two lines": (400, framed(TE + b"gzip", TE + b"chunked", body=CHUNKED + HIDDEN)),
    "HTTP/2.0": (505, framed(LENGTH, start=START.replace(b"1.1", b"2.0"))),
    "HTTP/0.9": (505, framed(LENGTH, start=START.replace(b"1.1", b"0.9"))),
    "transfer-encoding in HTTP/1.0": (
        400,
        framed(TE + b"chunked", b"Connection: keep-alive", start=START.replace(b"1.1", b"1.0"), body=CHUNKED + HIDDEN),
    ),
    "a fragment in the target": (400, framed(LENGTH, start=b"POST /v1/chat/completions#a HTTP/1.1\r\n")),
}


@pytest.mark.parametrize("name", list(NOT_IMPLEMENTED))
async def test_what_a_proxy_in_front_may_read_otherwise_is_refused_by_its_name(name):
    status, said = NOT_IMPLEMENTED[name]
    async with guarded() as (_, client, asked):
        await client.say(said)
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) in ((status, "close"), (status, None)), reply
        assert reply.version in ("HTTP/1.1", "HTTP/1.0")
        assert orjson.loads(reply.body)["error"]["message"]
        assert await client.ended() == b""
        assert asked.users == []


@pytest.mark.parametrize(
    "path", ["/v1/chat/%63ompletions", "/v1/%63hat/completions", "/v1/chat%2Fcompletions", "/%6civez", "/v1/%6dodels"]
)
async def test_an_escaped_path_is_no_route(path):
    """A rule of a proxy in front may not match it."""
    async with guarded() as (_, client, asked):
        for method in (b"POST", b"GET"):
            await client.say(framed(LENGTH, start=b"%b %b HTTP/1.1\r\n" % (method, path.encode())))
            assert (await client.reply()).status == 404
        assert asked.users == []


NORMAL = {
    "a chunk's extensions": framed(TE + b"chunked", body=CHUNKED.replace(b"\r\n", b';a=b;c="d e"\r\n', 1)),
    "CHUNKED": framed(TE + b"CHUNKED", body=CHUNKED),
    "a tab before chunked": framed(TE + b"\tchunked", body=CHUNKED),
    "blanks around chunked": framed(TE + b"  chunked  ", body=CHUNKED),
    "blanks around the length": framed(b"Content-Length:  %d  " % len(BODY)),
    "zeros before the length": framed(b"Content-Length: 000%d" % len(BODY)),
    "trailers": framed(TE + b"chunked", b"Trailer: X-Trace", body=CHUNKED[:-2] + b"X-Trace: t\r\nX-Other: o\r\n\r\n"),
    "a target in absolute form": framed(LENGTH, start=b"POST http://other:1/v1/chat/completions HTTP/1.1\r\n"),
    "a target with a query": framed(LENGTH, start=b"POST /v1/chat/completions?a=%0d%0aX:y HTTP/1.1\r\n"),
    "line breaks before the request": b"\r\n\r\n" + framed(LENGTH),
    "a connection that names the length": framed(LENGTH, b"Connection: content-length, host"),
    "a body that looks like a request": framed(b"Content-Length: %d" % (len(BODY) + 1000), body=BODY + b" " * 1000),
    "a body in two encodings": framed(LENGTH, b"TE: trailers, chunked"),
    "a trace beyond ASCII": framed(LENGTH, b"X-Other: \xff\xc3\xa9"),
}


@pytest.mark.parametrize("name", list(NORMAL))
async def test_what_is_odd_and_plain_is_one_request_and_the_next_is_its_own(name):
    async with guarded() as (_, client, asked):
        await client.say(NORMAL[name] + BEHIND)
        first = await client.reply()
        assert (first.status, first.body) == (200, COMPLETE), first
        if TE in NORMAL[name]:
            assert await client.ended() == b"", "who asks in chunks gets one answer"
            assert asked.users == ["open"]
            assert asked.traces == [None]
            return
        assert (await client.reply()).body == COMPLETE
        assert asked.users == ["open", "behind"]
        assert asked.traces == [None, "behind"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/nowhere"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_trailer_is_no_header_of_the_next_request(path, at_once):
    """aiohttp's parser makes it one."""
    body = CHUNKED[:-2] + b"X-Trace: smuggled\r\n\r\n"
    async with guarded() as (_, client, asked):
        await client.say(raw_post(body, TE + b"chunked", path=path, length=None) + (BEHIND if at_once else b""))
        assert (await client.reply()).header("connection") == "close"
        with contextlib.suppress(ConnectionError):
            await client.say(b"" if at_once else BEHIND)
        assert await client.ended() == b""
        assert asked.traces == ([] if path == "/nowhere" else [None])


@pytest.mark.parametrize("method", ["CONNECT gateway:80", "TRACE /v1/chat/completions", "OPTIONS *", "PRI *", "M-X /"])
async def test_other_methods_tunnel_nothing(method):
    async with guarded() as (_, client, asked):
        await client.say(f"{method} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode())
        assert (await client.reply()).status in (400, 404, 405)
        assert asked.users == []


async def test_what_is_hidden_in_a_body_is_no_request_of_its_own():
    body = orjson.dumps({**CHAT, "user": "open", "messages": [{"role": "user", "content": HIDDEN.decode()}]})
    async with guarded() as (_, client, asked):
        await client.say(raw_post(body, path="/nowhere") + raw_post(body, path="/sleep") + raw_post(body) + BEHIND)
        assert [(await client.reply()).status for _ in range(4)] == [404, 404, 200, 200]
        assert asked.users == ["open", "behind"]
