"""A prefill and some decode engines that act by scripts, behind a gateway that splits every prompt."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gateway.proxy.settings import RetrySettings
from tests.support.chat import COMPLETE, DONE, ROLE, WORD
from tests.support.gateway import PATIENT, QUICK_FLEET, Running, running, split_config
from tests.support.scripted_engine import Post, ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, answer, chunked

WATCHED = replace(QUICK_FLEET, scrape=replace(QUICK_FLEET.scrape, timeout=1.0))
"""An engine that says nothing more is seen to be down within a second."""

UNWATCHED = replace(QUICK_FLEET, scrape=replace(QUICK_FLEET.scrape, interval=60))
"""No scrape sees what happens to an engine before a request does."""

PARAMETERS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 1,
    "tp_size": 1,
    "remote_prefill_cached_tokens": 2,
}
USAGE = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
PREFILLED = orjson.dumps({"id": "chatcmpl-p", "choices": [], "usage": USAGE, "kv_transfer_params": PARAMETERS})
ERROR = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
FAILED = answer(orjson.dumps(ERROR), status="500 Internal Server Error")
FAILED_STREAM = STREAM_HEAD + chunked(b"data: " + orjson.dumps(ERROR) + b"\n\n", DONE)


@dataclass
class Told:
    """An engine that acts by ``post``, and keeps what it was asked."""

    post: Post
    heads: list[bytes] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    gone: int = 0

    async def __call__(self, connection: Connection, head: bytes, body: bytes) -> None:
        self.heads.append(head)
        self.bodies.append(orjson.loads(body))
        await self.post(connection, head, body)

    @property
    def with_parameters(self) -> list[bool]:
        return ["kv_transfer_params" in body for body in self.bodies]


async def prefills(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(answer(PREFILLED))


async def decodes(connection: Connection, head: bytes, body: bytes) -> None:
    streamed = orjson.loads(body).get("stream")
    await connection.say(STREAM_HEAD + chunked(ROLE, WORD, DONE) if streamed else answer(COMPLETE))


async def resets(connection: Connection, head: bytes, body: bytes) -> None:
    connection.reset()


async def hangs(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.gone()
    connection.writer.close()


async def talks_garbage(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(b"\x16\x03\x01 no HTTP\r\n\r\n")
    connection.writer.close()


async def dies_half_way(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
    connection.reset()


async def stalls_half_way(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
    await connection.gone()
    connection.writer.close()


def says(data: bytes) -> Post:
    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(data)

    return post


def fetching_fails(failure: Post) -> Post:
    """Fails as ``failure`` where it would have to fetch KV, and decodes what it computes itself."""

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await (failure if "kv_transfer_params" in orjson.loads(body) else decodes)(connection, head, body)

    return post


@dataclass
class Setting:
    gateway: Running
    prefill: Told
    decode: Told
    servers: list[ScriptedEngine]

    async def ask(self, body: dict[str, Any], **headers: str) -> tuple[int, bytes]:
        reply = await self.gateway.client.post("/v1/chat/completions", json=body, headers=headers)
        return reply.status_code, reply.content

    async def attempts(self) -> dict[tuple[str, str], int]:
        """(leg, ``ok`` or ``bad``) -> how many were counted."""
        counted: dict[tuple[str, str], int] = {}
        for line in (await self.gateway.metrics()).splitlines():
            if line.startswith("kvgate_attempts_total{"):
                leg, result = (line.partition(f'{label}="')[2].partition('"')[0] for label in ("leg", "result"))
                key = leg, "ok" if result == "ok" else "bad"
                counted[key] = counted.get(key, 0) + round(float(line.rpartition(" ")[2]))
        return counted

    async def settled(self) -> Any:
        """The request's line, with nothing left booked."""
        await eventually(lambda: self.gateway.lines, "the request is settled")
        await eventually(self.gateway.idle, "every permit and reservation is given back")
        metrics = await self.gateway.metrics()
        assert not [line for line in metrics.splitlines() if line.startswith("kvgate_in_flight") and line[-3:] != "0.0"]
        return self.gateway.lines[-1]


@contextlib.asynccontextmanager
async def pair(prefill: Post = prefills, decode: Post = decodes, *more: Post, **parameters: Any):
    """One prefill engine, and decode engines that act by ``decode`` and ``more``."""
    timeouts = parameters.pop("timeouts", PATIENT)
    retries = parameters.pop("retries", RetrySettings(budget=1.0))
    fleet = parameters.pop("fleet", WATCHED)
    also_prefills = parameters.pop("also_prefills", ())
    port = parameters.pop("bootstrap_port", 8998)
    async with contextlib.AsyncExitStack() as stack:
        first, second = Told(prefill), Told(decode)
        servers = [await stack.enter_async_context(ScriptedEngine(post)) for post in (first, second, *more)]
        others = [(await stack.enter_async_context(ScriptedEngine(post))).url for post in also_prefills]
        urls = [server.url for server in servers]
        config = split_config(
            [urls[0], *others],
            urls[1:],
            parameters=parameters,
            bootstrap_port=port,
            timeouts=timeouts,
            retries=retries,
            fleet=fleet,
        )
        gateway = await stack.enter_async_context(running(config))
        yield Setting(gateway, first, second, servers)


def answered(body: dict[str, Any], status: int, content: bytes) -> bool:
    return status == 200 and content == (ROLE + WORD + DONE if body.get("stream") else COMPLETE)
