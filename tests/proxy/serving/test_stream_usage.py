"""Streams tell us their usage, and their clients get the bytes that they would have got."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from gateway.api.settings import PassThroughSettings
from gateway.core.clock import SystemClock
from gateway.proxy.serving.stream_usage import AGAIN
from tests.support.chat import DONE, ROLE, STREAMED, WORD, chat
from tests.support.engines import engines
from tests.support.fleet import engines_of
from tests.support.gateway import Running, config_for, running, split_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, answer, chunked

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SILENT = PassThroughSettings(ask_usage=False)
TOKENS = {"max_tokens": 5, "ignore_eos": True}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'
LAST = b'data: {"choices":[],"usage":' + orjson.dumps(USAGE) + b',"system_fingerprint":"f"}\n\n'
FINISHED = FINISH[:-3] + b',"system_fingerprint":"f"}\n\n'
REFUSED = answer(b'{"error":{"message":"Unknown field stream_options","code":400}}', status="400 Bad Request")


async def said_to(gateway: Running, path: str, body: dict[str, Any]) -> bytes:
    """The stream, without what differs between two requests to a simulated engine."""
    reply = await gateway.client.post(path, json={**body, "stream": True}, headers={"x-request-id": "one"})
    assert reply.status_code == 200
    return re.sub(rb'"(created|created_at)":\d+', rb'"\1":0', reply.content)


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**chat(words=60), **TOKENS}),
    "chat of one token": (CHAT, chat(max_tokens=1)),
    "chat with ids": (CHAT, chat(**TOKENS, return_token_ids=True)),
    "chat that does not want it": (CHAT, chat(**TOKENS, stream_options={"include_usage": False})),
    "chat with stats all along, of nothing": (CHAT, chat(**TOKENS, stream_options={"continuous_usage_stats": True})),
    "chat that wants it": (CHAT, chat(**TOKENS, stream_options={"include_usage": True})),
    "chat that wants it all along": (
        CHAT,
        chat(**TOKENS, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    ),
    "chat of three answers": (CHAT, chat(n=3, max_tokens=40)),
    "completion": (COMPLETION, {"model": "sim", "prompt": "hello there", **TOKENS}),
    "completion of several prompts": (COMPLETION, {"model": "sim", "prompt": ["one", "two"], "n": 2, **TOKENS}),
    "response": ("/v1/responses", {"model": "sim", "input": "hello there", "max_output_tokens": 5}),
    "messages": ("/v1/messages", {"model": "sim", "messages": chat(words=5)["messages"], "max_tokens": 5}),
}


async def test_clients_get_the_same_bytes_with_and_without():
    async with engines(1) as (server,):
        async with running(config_for(server.url, pass_through=SILENT)) as gateway:
            for _ in range(2):  # what is told of the cache changes with the first
                plain = {name: await said_to(gateway, *body) for name, body in BODIES.items()}
        async with running(config_for(server.url)) as gateway:
            for _ in range(2):
                assert {name: await said_to(gateway, *body) for name, body in BODIES.items()} == plain
            assert all(line.reported_prompt_tokens for line in gateway.lines[len(BODIES) :])
            several = BODIES["completion of several prompts"][1]
            sent = [orjson.loads(one.body) for one in server.received if one.path == COMPLETION]
            assert sent[-1] == {**several, "stream": True, "stream_options": {"include_usage": True}}


async def test_hits_of_plain_streams_are_seen():
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        for question in range(3):
            body = {**chat(question=question), "stream": True}
            assert b'"usage"' not in (await gateway.client.post(CHAT, json=body)).content
        assert [line.cached_tokens > 0 for line in gateway.lines] == [False, True, True]
        assert all(line.output_tokens == 3 for line in gateway.lines)
        (runtime,) = gateway.gateway.directory.runtimes
        assert runtime.model.event_tokens == pytest.approx(1), "the event with the usage is no output"


async def test_a_decode_leg_tells_its_usage():
    async with engines(2, connector="nixl") as (prefill, decode):
        bare = split_config([prefill.url], [decode.url], parameters={}, pass_through=SILENT)
        async with running(bare) as gateway:
            plain = await said_to(gateway, *BODIES["chat"])
        async with running(split_config([prefill.url], [decode.url], parameters={})) as gateway:
            assert await said_to(gateway, *BODIES["chat"]) == plain
            line = gateway.lines[-1]
            assert (line.plan, line.fallback, line.output_tokens) == ("split", None, 5)
            assert line.cached_tokens is not None


@contextlib.asynccontextmanager
async def before(*said: bytes, refuses: bytes = b"", **changes: Any) -> AsyncIterator[tuple[Running, list[Any]]]:
    """A gateway in front of an engine that says this to everyone, or ``refuses`` who asks for a usage."""
    seen: list[tuple[dict[str, Any], bytes]] = []

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        seen.append((orjson.loads(body), head.lower()))
        await connection.say(refuses if refuses and b"stream_options" in body else b"".join(said))

    async with ScriptedEngine(post) as server, running(config_for(server.url, **changes)) as gateway:
        yield gateway, seen


async def test_nothing_is_asked_where_the_key_says_so():
    async with before(STREAM_HEAD, chunked(ROLE, WORD, FINISH, LAST, DONE), pass_through=SILENT) as (gateway, seen):
        reply = await gateway.client.post(CHAT, json=STREAMED, headers={"accept-encoding": "gzip"})
        assert reply.content == b"".join([ROLE, WORD, FINISH, LAST, DONE])
        assert seen[0][0] == STREAMED
        assert b"accept-encoding: gzip" in seen[0][1]


async def test_a_stream_that_must_be_read_is_not_asked_for_compressed():
    async with before(STREAM_HEAD, chunked(ROLE, WORD, FINISH, LAST, DONE)) as (gateway, seen):
        reply = await gateway.client.post(CHAT, json=STREAMED, headers={"accept-encoding": "gzip"})
        assert reply.content == b"".join([ROLE, WORD, FINISHED, DONE])
        assert b"accept-encoding" not in seen[0][1]


async def test_a_client_sees_none_of_several_usages():
    async with before(STREAM_HEAD, chunked(ROLE, WORD, FINISH, LAST, LAST, LAST, DONE)) as (gateway, _):
        assert (await gateway.client.post(CHAT, json=STREAMED)).content == b"".join([ROLE, WORD, FINISHED, DONE])
        assert gateway.lines[0].cached_tokens == USAGE["prompt_tokens_details"]["cached_tokens"]


async def test_an_engine_that_refuses_is_noticed_once(caplog: pytest.LogCaptureFixture):
    said = ROLE, WORD, FINISH, DONE
    async with before(STREAM_HEAD, chunked(*said), refuses=REFUSED) as (gateway, seen):
        with caplog.at_level(logging.WARNING, "kvgate.usage"):
            for _ in range(3):
                assert (await gateway.client.post(CHAT, json=STREAMED)).content == b"".join(said)
        assert ["stream_options" in body for body, _ in seen] == [True, False, False, False]
        (said_of_it,) = [record.getMessage() for record in caplog.records if record.name == "kvgate.usage"]
        assert "refuses stream_options" in said_of_it
        assert [(line.outcome, line.attempts) for line in gateway.lines] == [("ok", 1)] * 3
        assert gateway.idle()
        await gateway.reload()
        assert (await gateway.client.post(CHAT, json=STREAMED)).content == b"".join(said)
        assert len(seen) == 5, "a reload forgets nothing of it"


@pytest.mark.parametrize("tells", [True, False])
async def test_an_engine_that_refused_is_asked_again_where_it_may_be_another(
    tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that tells when it was started is another when it says so; of one that does not nobody knows."""
    said, clock = (ROLE, WORD, FINISH, DONE), SystemClock()
    refusing, asked = True, []

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        asked.append(b"stream_options" in body)
        told = chunked(*said[:-1], LAST, DONE) if asked[-1] else chunked(*said)
        await connection.say(REFUSED if asked[-1] and refusing else STREAM_HEAD + told)

    async with ScriptedEngine(post) as server:
        if not tells:
            server.started = None
        async with running(config_for(server.url)) as gateway:

            async def stream() -> bytes:
                return (await gateway.client.post(CHAT, json=STREAMED)).content

            assert [await stream(), await stream()] == [b"".join(said)] * 2
            assert asked == [True, False, False]
            refusing, now = False, clock.monotonic()
            monkeypatch.setattr(gateway.gateway.clock, "monotonic", lambda: now + AGAIN)
            assert await stream() == b"".join(said if tells else [ROLE, WORD, FINISHED, DONE])
            assert asked[3:] == [not tells]
            if tells:
                server.started = 1.8e9
                await eventually(lambda: engines_of(gateway.gateway.fleet)[0].started == 1.8e9, "it has started anew")
                assert await stream() == b"".join([ROLE, WORD, FINISHED, DONE])


async def test_what_the_engine_refuses_of_the_clients_own_is_the_clients():
    async with before(REFUSED) as (gateway, seen):
        for _ in range(2):
            reply = await gateway.client.post(CHAT, json=STREAMED)
            assert (reply.status_code, b"stream_options" in reply.content) == (400, True)
        assert ["stream_options" in body for body, _ in seen] == [True, False] * 2


async def test_a_stream_that_breaks_gives_out_what_was_held():
    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, FINISH, LAST[:30], end=False))
        connection.writer.close()

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        content = (await gateway.client.post(CHAT, json=STREAMED)).content
        assert content.startswith(b"".join([ROLE, WORD, FINISH, LAST[:30]]))
        assert b'"error"' in content
        assert gateway.lines[0].outcome == "broken"


async def test_a_client_that_leaves_while_something_is_held_leaves_nothing_behind():
    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, FINISH, end=False))
        await connection.gone()

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        async with (
            httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
            client.stream("POST", CHAT, json=STREAMED) as one,
        ):
            async for data in one.aiter_raw():
                assert data
                break
        await eventually(lambda: gateway.lines, "it is settled")
        await eventually(gateway.idle, "nothing stays booked")
        assert gateway.lines[0].outcome == "cancelled"


async def test_the_share_of_hits_is_the_engines_own_over_mixed_traffic():
    async with engines(2) as servers, running(config_for(*(server.url for server in servers))) as gateway:

        def named(text: str, name: str) -> float:
            return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))

        for number in range(24):
            options = ({"include_usage": True}, None, {"include_usage": False})[number % 3]
            body = chat(group=number % 4, question=number) | ({"stream": True} if number % 4 else {})
            if options is not None and body.get("stream"):
                body["stream_options"] = options
            assert (await gateway.client.post(CHAT, json=body)).status_code == 200
        ranks = [rank.stats for server in servers for rank in server.service.engines]
        queried, hit = sum(rank.prefix_queries for rank in ranks), sum(rank.prefix_hits for rank in ranks)
        assert hit > queried / 2

        fleet, (runtime,) = gateway.gateway.fleet, gateway.gateway.directory.runtimes
        endpoints = fleet.endpoints(runtime.model)
        await eventually(lambda: sum(one.metrics.prefix_queries for one in endpoints) == queried, "all is scraped")
        text = await gateway.metrics()
        assert named(text, "kvgate_engine_cache_hit_tokens_total") == hit
        assert named(text, "kvgate_reported_prompt_tokens_total") == queried
        assert named(text, "kvgate_reported_hit_tokens_total") == hit
