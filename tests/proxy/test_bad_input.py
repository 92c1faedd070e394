"""Covers: gateway/proxy/http/server.py, gateway/proxy/http/receive.py, gateway/proxy/serving/identify.py.

What clients get wrong: each gets a clear error in its dialect, no engine is asked, and nothing stays booked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.proxy.settings import KeySettings, ListenSettings, TimeoutSettings
from tests.support.chat import CHAT, COMPLETE
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import answer

CHAT_PATH = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def asked_engine(**changes: object) -> AsyncIterator[tuple[Running, list[tuple[bytes, bytes]]]]:
    """A gateway, and the requests that reached its engine."""
    asked: list[tuple[bytes, bytes]] = []

    async def post(connection, head, body):
        asked.append((head, body))
        await connection.say(answer(COMPLETE))

    async with ScriptedEngine(post) as server, running(config_for(server.url, **changes)) as gateway:
        yield gateway, asked


BAD = {
    "truncated": (b'{"model": "sim", "messages": [{"role"', None),
    "empty body": (b"", None),
    "an array": (b"[]", None),
    "a string": (b'"model"', None),
    "not UTF-8": (b'{"model": "\xff\xfe", "messages": [{"role":"user","content":"x"}]}', None),
    "deep nesting": (b'{"model": "sim", "messages": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", None),
    "model is a number": (orjson.dumps({**CHAT, "model": 5}), "model"),
    "messages are empty": (orjson.dumps({**CHAT, "messages": []}), "messages"),
    "messages are a string": (orjson.dumps({**CHAT, "messages": "hi"}), "messages"),
    "stream is no boolean": (orjson.dumps({**CHAT, "stream": "oui"}), "stream"),
    "stream is 2": (orjson.dumps({**CHAT, "stream": 2}), "stream"),
    "vllm_xargs are a string": (orjson.dumps({**CHAT, "vllm_xargs": "x"}), "vllm_xargs"),
    "kv_transfer_params are a list": (orjson.dumps({**CHAT, "kv_transfer_params": []}), "kv_transfer_params"),
    "ec_transfer_params are a number": (orjson.dumps({**CHAT, "ec_transfer_params": 1}), "ec_transfer_params"),
    "trailing bytes": (orjson.dumps(CHAT) + b" x", None),
    "NaN": (b'{"model": "sim", "temperature": NaN, "messages": []}', None),
}


@pytest.mark.parametrize("name", list(BAD))
async def test_a_body_that_cannot_be_routed_is_a_400_that_names_the_culprit(name):
    body, param = BAD[name]
    async with asked_engine() as (gateway, asked):
        reply = await gateway.client.post(CHAT_PATH, content=body, headers={"Content-Type": "application/json"})
        error = reply.json()["error"]
        assert reply.status_code == 400, reply.text
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        if param:
            assert error["param"] == param
        assert not asked
        assert gateway.idle()
        assert (await gateway.client.post(CHAT_PATH, json=CHAT)).status_code == 200


async def test_an_unknown_model_is_a_404_with_the_nearest_name():
    async with asked_engine() as (gateway, asked):
        reply = await gateway.client.post(CHAT_PATH, json={**CHAT, "model": "smi"})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (404, "model")
        assert "'sim'" in error["message"]
        assert not asked


async def test_a_huge_model_name_is_not_repeated_whole():
    async with asked_engine() as (gateway, _):
        reply = await gateway.client.post(CHAT_PATH, json={**CHAT, "model": "x" * 1_000_000})
        assert reply.status_code == 404
        assert len(reply.content) < 2000


async def test_a_body_that_names_no_model_is_meant_for_the_only_one():
    async with asked_engine() as (gateway, asked):
        reply = await gateway.client.post(CHAT_PATH, json={"messages": CHAT["messages"]})
        assert reply.status_code == 200
        assert len(asked) == 1


async def test_a_body_over_the_limit_is_a_413_with_and_without_a_length():
    async def pieces():
        for _ in range(20):
            yield b"x" * 1000

    async with asked_engine(listen=ListenSettings(max_body=10_000)) as (gateway, asked):
        told = await gateway.client.post(CHAT_PATH, content=b"x" * 20_000)
        untold = await gateway.client.post(CHAT_PATH, content=pieces())
        for reply in (told, untold):
            assert reply.status_code == 413
            assert "10000" in reply.json()["error"]["message"]
        exact = orjson.dumps(CHAT)
        exact += b" " * (10_000 - len(exact))
        assert (await gateway.client.post(CHAT_PATH, content=exact)).status_code == 200
        assert len(asked) == 1


async def test_a_hundred_megabytes_disturb_nobody():
    async with asked_engine() as (gateway, _):

        async def flood():
            reply = await gateway.client.post(CHAT_PATH, content=b"x" * 100_000_000)
            return reply.status_code

        flooding = asyncio.get_running_loop().create_task(flood())
        for _ in range(20):
            assert (await gateway.client.post(CHAT_PATH, json=CHAT)).status_code == 200
        with contextlib.suppress(ConnectionError):  # some systems reset what was not read
            assert await flooding == 413
        await eventually(gateway.idle, "nothing stays booked")


async def test_a_body_that_does_not_come_is_a_408():
    timeouts = TimeoutSettings(receive=0.05)
    async with asked_engine(timeouts=timeouts) as (gateway, asked):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()
        assert not asked


async def test_a_prompt_of_a_million_tokens_reaches_the_engine_whole():
    prompt = list(range(1000)) * 1000
    async with asked_engine() as (gateway, asked):
        body = orjson.dumps({"model": "sim", "prompt": prompt, "max_tokens": 1})
        reply = await gateway.client.post("/v1/completions", content=body)
        assert reply.status_code == 200
        assert asked[0][1] == body
        assert gateway.lines[-1].prompt_tokens == 1_000_000


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/load_lora_adapter", "POST", 404),
        ("/sleep", "POST", 404),
        ("/wake_up", "POST", 404),
        ("/reset_prefix_cache", "POST", 404),
        ("/collective_rpc", "POST", 404),
        ("/metrics", "GET", 404),
        ("/debug", "GET", 404),
        ("/v1/chat/completions/", "POST", 404),
        ("/v1//chat/completions", "POST", 404),
        ("/v1/chat/completions/../../../sleep", "POST", 404),
        ("/%73leep", "POST", 404),
        ("/inference/v1/generate", "POST", 404),
        ("/v1/chat/completions", "GET", 405),
        ("/v1/chat/completions", "PUT", 405),
        ("/v1/models", "POST", 404),
    ],
)
async def test_only_listed_routes_are_passed(path, method, status):
    async with asked_engine() as (gateway, asked):
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        reply = await reader.read()
        assert reply.split(b" ", 2)[1] == str(status).encode()
        assert orjson.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]
        writer.close()
        assert not asked


async def test_errors_on_messages_have_anthropics_shape():
    async with asked_engine() as (gateway, _):
        reply = await gateway.client.post("/v1/messages", json={"model": "nope", "messages": [{}], "max_tokens": 1})
        assert reply.status_code == 404
        assert reply.json()["type"] == "error"
        assert reply.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (["one"], "one"),
        (["one", "two"], "one"),
        (["a b\tc/d"], "abcd"),
        (["x" * 5000], "x" * 128),
    ],
)
async def test_a_request_id_is_cleaned_bounded_and_goes_both_ways(sent, seen):
    async with asked_engine() as (gateway, asked):
        headers = [("X-Request-Id", value) for value in sent]
        reply = await gateway.client.post(CHAT_PATH, json=CHAT, headers=headers)
        assert reply.headers.get_list("X-Request-Id") == [seen]
        assert f"x-request-id: {seen}\r\n".encode() in asked[0][0].lower()


async def test_a_request_without_an_id_gets_one_also_on_errors():
    async with asked_engine() as (gateway, asked):
        good = await gateway.client.post(CHAT_PATH, json=CHAT)
        assert good.headers["X-Request-Id"].encode() in asked[0][0]
        bad = await gateway.client.post(CHAT_PATH, content=b"{")
        assert bad.headers["X-Request-Id"] not in ("", good.headers["X-Request-Id"])


@pytest.mark.parametrize(
    "header", [{"Authorization": "Bearer two"}, {"x-api-key": "one"}, {"authorization": "bEaReR  one"}]
)
async def test_a_client_with_a_key_is_served(header):
    async with asked_engine(client_keys=KeySettings(values=("one", "two"))) as (gateway, asked):
        assert (await gateway.client.post(CHAT_PATH, json=CHAT, headers=header)).status_code == 200
        assert (await gateway.client.get("/v1/models", headers=header)).status_code == 200
        head = asked[0][0].lower()
        assert b"authorization" not in head
        assert b"x-api-key" not in head


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer three"}, {"Authorization": "Bearer"}, {"Authorization": "Basic one"}]
)
async def test_a_client_without_a_key_is_not(header):
    async with asked_engine(client_keys=KeySettings(values=("one", "two"))) as (gateway, asked):
        for reply in (
            await gateway.client.post(CHAT_PATH, json=CHAT, headers=header),
            await gateway.client.get("/v1/models", headers=header),
        ):
            assert reply.status_code == 401
            assert reply.json()["error"]["type"] == "authentication_error"
        assert not asked
        assert [(line.outcome, line.status, line.route) for line in gateway.lines] == [("unauthorized", 401, CHAT_PATH)]
        assert 'kvgate_requests_total{model="",outcome="unauthorized"} 1.0' in await gateway.metrics()
        assert (await gateway.client.get("/health")).status_code == 200


async def test_keys_come_from_a_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# team a\n\nfirst\n  second  \n")
    async with asked_engine(client_keys=KeySettings(file=str(file))) as (gateway, _):
        for key, status in (("first", 200), ("second", 200), ("# team a", 401)):
            reply = await gateway.client.post(CHAT_PATH, json=CHAT, headers={"Authorization": f"Bearer {key}"})
            assert reply.status_code == status


async def test_expect_100_continue_is_answered_before_the_body():
    body = orjson.dumps(CHAT)
    async with asked_engine() as (gateway, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_expect_of_a_client_that_speaks_http_1_0_is_ignored():
    body = orjson.dumps(CHAT)
    async with asked_engine() as (gateway, _):
        head = b"POST /v1/chat/completions HTTP/1.0\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        reply = await _said(gateway, head % len(body) + body)
        assert reply.startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Authorization: Bearer open-sesame\x00", 400),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
        (b"X-Large: open-sesame" + b"x" * 100_000, 431),
        (b"Content-Encoding: br\r\nContent-Length: 5", 415),
    ],
)
async def test_what_is_not_http_is_refused_in_our_shape_and_not_logged(lines, status, caplog):
    async with asked_engine() as (gateway, asked):
        reply = await _said(gateway, b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n" + lines + b"\r\n\r\nhello")
        head, _, body = reply.partition(b"\r\n\r\n")
        assert head.split(b" ", 2)[1] == str(status).encode()
        assert b"x-request-id" in head.lower()
        assert orjson.loads(body)["error"]["type"] == "invalid_request_error"
        assert not asked
        assert (await gateway.client.post(CHAT_PATH, json=CHAT)).status_code == 200
    assert "open-sesame" not in caplog.text
    assert "Traceback" not in caplog.text


async def _said(gateway: Running, request: bytes) -> bytes:
    """All that a gateway says to these bytes before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    writer.write(request)
    reply = await reader.read()
    writer.close()
    return reply


@pytest.mark.parametrize("said", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost:"], ids=["nothing", "half a head"])
async def test_a_connection_whose_request_does_not_come_is_closed(said):
    async with asked_engine(timeouts=TimeoutSettings(receive=0.05)) as (gateway, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(said)
        assert await reader.read() == b""
        writer.close()
        assert (await gateway.client.post(CHAT_PATH, json=CHAT)).status_code == 200


async def test_the_forms_that_anthropics_and_jinas_clients_ask_for_are_routed():
    async with asked_engine() as (gateway, asked):
        for path in ("/v1/messages/count_tokens", "/v2/score"):
            reply = await gateway.client.post(path, json={**CHAT, "text_1": "a", "text_2": "b"})
            assert reply.status_code == 200
        assert len(asked) == 2
