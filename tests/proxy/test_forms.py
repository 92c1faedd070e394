"""Covers: gateway/api/multipart.py, gateway/api/content_type.py.

Forms on their way to an engine: what it reads is what was read here, and what may not pass is in neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from python_multipart.multipart import parse_options_header

from tests.support.chat import COMPLETE
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import RawClient, answer, raw_client

PATH = "/v1/audio/transcriptions"


def form(boundary: str, **fields: str) -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    return ("".join(parts) + f"--{boundary}--\r\n").encode()


def post(content_type: str, body: bytes) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: g\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[Running, RawClient, list[tuple[str, bytes]]]]:
    """A gateway, a connection to it, and the content types and bodies that reached its engine."""
    asked: list[tuple[str, bytes]] = []

    async def hear(connection, head, body):
        lines = [line.partition(b":") for line in head.split(b"\r\n")]
        (content_type,) = [value.strip().decode() for name, _, value in lines if name.lower() == b"content-type"]
        asked.append((content_type, body))
        await connection.say(answer(COMPLETE))

    async with ScriptedEngine(hear) as server, running(config_for(server.url)) as gateway:
        async with raw_client(gateway.url) as client:
            yield gateway, client, asked


@pytest.mark.parametrize(
    "content_type",
    ['multipart/form-data; boundary=a; boundary="a--\\x"', 'multipart/form-data; x="; boundary=a;"; boundary="a--\\x"'],
)
async def test_a_form_with_two_boundaries_reaches_no_engine(content_type):
    hiding = form("a--\\x", kv_transfer_params="{}", vllm_xargs="{}", model="another")
    async with listening() as (_, client, asked):
        await client.say(post(content_type, hiding))
        reply = await client.reply()
        assert reply.status == 400, reply
        assert b"content-type" in reply.body or b"boundary" in reply.body
        assert asked == []


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=----WebKit7MA4", "----WebKit7MA4"),
        ('multipart/form-data; x="; boundary=b"; boundary="a=b/c"; charset=utf-8', "a=b/c"),
    ],
)
async def test_the_engine_is_told_the_boundary_that_was_read_here(content_type, boundary):
    async with listening() as (_, client, asked):
        await client.say(post(content_type, form(boundary, model="sim", kv_transfer_params="{}", prompt="hi")))
        assert (await client.reply()).status == 200
        ((told, body),) = asked
        assert parse_options_header(told) == (b"multipart/form-data", {b"boundary": boundary.encode()})
        assert body == form(boundary, model="sim", prompt="hi")
