"""Covers: gateway/api/field_filter.py, gateway/api/headers.py.

Bytes pass as they came, both ways, but for what is never a client's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.api.settings import PassThroughSettings
from gateway.fleet.settings import EndpointSettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import STREAM_HEAD, answer, chunked

PATH = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@contextlib.asynccontextmanager
async def seen_by_engine(said: bytes = answer(COMPLETE), **changes: object) -> AsyncIterator[tuple[Running, list]]:
    seen: list[tuple[bytes, bytes]] = []

    async def post(connection, head, body):
        seen.append((head, body))
        await connection.say(said)

    async with ScriptedEngine(post) as server:
        of_endpoint = changes.pop("endpoint", {})
        endpoints = (EndpointSettings(url=server.url, **of_endpoint),)
        async with running(config_for(endpoints=endpoints, **changes)) as gateway:
            yield gateway, seen


async def test_a_body_that_needs_no_change_passes_byte_for_byte():
    body = (
        b'{ "messages": [{"role":"user","content":"\\u0048i \xc3\xa9"}] ,\n\t"model":"sim", "x": 1e999, "x": 0.10,\n'
        b'"y": 123456789012345678901234567890 }'
    )
    async with seen_by_engine() as (gateway, seen):
        await gateway.client.post(PATH, content=body, headers=JSON)
        assert seen[0][1] == body


async def test_an_alias_becomes_the_served_name_and_every_other_value_keeps_its_bytes():
    body = (
        b'{"messages":[{"role":"user","content":"\\u0048i"}],"model":"gpt-4o","temperature":0.10, '
        b'"big":123456789012345678901234567890}'
    )
    async with seen_by_engine(aliases=("gpt-4o",)) as (gateway, seen):
        await gateway.client.post(PATH, content=body, headers=JSON)
        sent = seen[0][1]
        assert orjson.loads(sent)["model"] == "sim"
        for kept in (b'[{"role":"user","content":"\\u0048i"}]', b"0.10", b"123456789012345678901234567890"):
            assert kept in sent


async def test_an_alias_stands_for_all_names_that_engines_serve():
    async with seen_by_engine(name="pool", aliases=("*",)) as (gateway, seen):
        for name in ("pool", "sim"):
            await gateway.client.post(PATH, json=CHAT | {"model": name})
        assert [orjson.loads(body)["model"] for _, body in seen] == ["sim", "sim"]
        unknown = await gateway.client.post(PATH, json=CHAT | {"model": "an-adapter-that-no-engine-has"})
        assert unknown.status_code == 404
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["pool"]


async def test_while_no_engine_has_said_what_it_serves_any_name_may_be_one():
    async with ScriptedEngine() as gone:
        pass
    async with running(config_for(gone.url, name="pool", aliases=("*",))) as gateway:
        assert (await gateway.client.post(PATH, json=CHAT | {"model": "llama"})).status_code == 503


DISGUISES = {
    "plain": b'"kv_transfer_params": {"do_remote_prefill": true}',
    "escaped": b'"\\u006bv_transfer_params": {"do_remote_prefill": true}',
    "twice": b'"kv_transfer_params": null, "kv_transfer_params": {"do_remote_prefill": true}',
    "for the encoder": b'"ec_transfer_params": {"do_remote_prefill": true}',
    "in vllm_xargs": b'"vllm_xargs": {"kv_transfer_params": {"do_remote_prefill": true}}',
    "in extra_args": b'"sampling_params": {"extra_args": {"kv_transfer_params": {"do_remote_prefill": true}}}',
}


@pytest.mark.parametrize(
    "path", [PATH, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/tokenize"]
)
async def test_what_kills_engines_is_never_a_clients(path):
    rest = b'"model":"sim","max_tokens":4,"prompt":"x","input":"x","messages":[{"role":"user","content":"x"}]'
    async with seen_by_engine() as (gateway, seen):
        for name, disguise in DISGUISES.items():
            seen.clear()
            await gateway.client.post(path, content=b"{" + rest + b", " + disguise + b"}", headers=JSON)
            ((_, sent),) = seen
            assert b"do_remote_prefill" not in sent, name
            assert b"transfer_params" not in sent, name
            assert orjson.loads(sent)["messages"] == [{"role": "user", "content": "x"}]


async def test_listed_xargs_pass_and_others_do_not():
    body = {**CHAT, "vllm_xargs": {"kv_cache_report_mode": "full", "other": 1}}
    async with seen_by_engine(pass_through=PassThroughSettings(vllm_xargs=("kv_cache_report_mode",))) as (
        gateway,
        seen,
    ):
        await gateway.client.post(PATH, json=body)
        assert orjson.loads(seen[0][1])["vllm_xargs"] == {"kv_cache_report_mode": "full"}


async def test_headers_that_steer_engines_are_dropped_unless_allowed():
    steering = {"X-data-parallel-rank": "3", "X-Vllm-Priority": "-1", "X-Session-ID": "s", "X-Harmless": "1"}
    async with seen_by_engine() as (gateway, seen):
        await gateway.client.post(PATH, json=CHAT, headers=steering)
        head = seen[0][0].lower()
        assert b"x-harmless: 1" in head
        for name in (b"x-data-parallel-rank", b"x-vllm-priority", b"x-session-id"):
            assert name not in head
    async with seen_by_engine(pass_through=PassThroughSettings(steering_headers=("x-vllm-priority",))) as (
        gateway,
        seen,
    ):
        await gateway.client.post(PATH, json=CHAT, headers=steering)
        head = seen[0][0].lower()
        assert b"x-vllm-priority: -1" in head
        assert b"x-data-parallel-rank" not in head


async def test_each_rank_is_asked_by_its_number():
    async with seen_by_engine(endpoint={"ranks": 2}) as (gateway, seen):
        for _ in range(12):
            await gateway.client.post(PATH, json=CHAT, headers={"X-data-parallel-rank": "7"})
        ranks = {
            line for head, _ in seen for line in head.lower().split(b"\r\n") if line.startswith(b"x-data-parallel")
        }
        assert ranks == {b"x-data-parallel-rank: 0", b"x-data-parallel-rank: 1"}


async def test_traces_pass_and_credentials_do_not():
    headers = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "a=1",
        "Authorization": "Bearer client",
        "Cookie": "c=1",
    }
    async with seen_by_engine() as (gateway, seen):
        await gateway.client.post(PATH, json=CHAT, headers=headers)
        head = seen[0][0].lower()
        assert b"traceparent: 00-4bf9" in head
        assert b"tracestate: a=1" in head
        assert b"authorization" not in head
        assert b"cookie" not in head


async def test_an_engines_key_replaces_the_clients():
    async with seen_by_engine(
        endpoint={"api_key": "engine-key"}, pass_through=PassThroughSettings(authorization=True)
    ) as (
        gateway,
        seen,
    ):
        await gateway.client.post(PATH, json=CHAT, headers={"Authorization": "Bearer client"})
        assert b"authorization: bearer engine-key\r\n" in seen[0][0].lower()
        assert seen[0][0].lower().count(b"authorization") == 1


async def test_a_clients_authorization_passes_if_configured():
    async with seen_by_engine(pass_through=PassThroughSettings(authorization=True)) as (gateway, seen):
        await gateway.client.post(PATH, json=CHAT, headers={"Authorization": "Bearer client"})
        assert b"authorization: bearer client\r\n" in seen[0][0].lower()


async def test_an_answer_passes_byte_for_byte_with_its_headers():
    body = b'{ "odd":  1.0,\n "choices": [] }'
    said = answer(body, extra=b"X-Engine: a\r\nX-Engine: b\r\nConnection: close\r\nKeep-Alive: timeout=5\r\n")
    async with seen_by_engine(said) as (gateway, _):
        reply = await gateway.client.post(PATH, json=CHAT)
        assert reply.content == body
        assert reply.headers.get_list("X-Engine") == ["a", "b"]
        assert "keep-alive" not in reply.headers
        assert reply.headers["content-type"] == "application/json"


async def test_a_stream_passes_byte_for_byte_comments_and_all():
    stream = [b": hello\n\n", ROLE, b": keep-alive\n\n" + WORD[:7], WORD[7:], DONE]
    async with seen_by_engine(STREAM_HEAD + chunked(*stream)) as (gateway, _):
        reply = await gateway.client.post(PATH, json=STREAMED)
        assert reply.content == b"".join(stream)
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        line = gateway.lines[-1]
        assert (line.outcome, line.status) == ("ok", 200)
        assert line.ttft is not None


async def test_a_stream_to_an_http_1_0_client_ends_with_its_connection():
    async with seen_by_engine(STREAM_HEAD + chunked(ROLE, WORD, DONE)) as (gateway, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        body = orjson.dumps(STREAMED)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert rest == ROLE + WORD + DONE
        writer.close()


async def test_pipelined_requests_are_answered_in_order():
    async with seen_by_engine() as (gateway, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        body = orjson.dumps(CHAT)
        one = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
            b"X-Request-Id: %d\r\nContent-Length: %d\r\n\r\n%s"
        )
        writer.write(b"".join(one % (number, len(body), body) for number in range(5)))
        for number in range(5):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"x-request-id: %d\r\n" % number in head.lower()
            assert await reader.readexactly(len(COMPLETE)) == COMPLETE
        writer.close()
