"""Covers: gateway/proxy/serving/transfer_legs.py, gateway/proxy/upstream/commit.py.

A decode leg that fetches its KV: when its answer is the client's, and what happens where the KV does not come.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from tests.support.chat import CHAT, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import PATIENT, SOON
from tests.support.split import (
    ERROR,
    FAILED,
    FAILED_STREAM,
    Told,
    answered,
    decodes,
    fetching_fails,
    hangs,
    pair,
    prefills,
    says,
)
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, chunked

KEPT = [
    ("completed_waiting", "still", "just now"),
    ("in_progress", "refuses", "just now"),
    ("in_progress", "still", "long ago"),
]
"""A prefill engine that is down, and yet no reason to give up an answer (but a stream's, of which nothing has come)."""

BODIES = pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])


@pytest.mark.parametrize(
    ("body", "failure", "cause"),
    [
        (CHAT, says(FAILED), "decode-error"),
        (STREAMED, says(FAILED), "decode-error"),
        (STREAMED, says(FAILED_STREAM), "decode-error"),
        (STREAMED, hangs, "decode-stuck"),
        (STREAMED, says(STREAM_HEAD + chunked(b": ping\n\n", end=False)), "decode-stuck"),
    ],
    ids=["whole", "head", "first event", "no head", "no event"],
)
async def test_a_decode_leg_that_cannot_fetch_is_sent_once_more_without(body, failure, cause):
    timeouts = replace(PATIENT, handover=SOON) if cause == "decode-stuck" else PATIENT
    async with pair(decode=fetching_fails(failure), timeouts=timeouts) as setting:
        assert answered(body, *await setting.ask(body))
        assert setting.decode.with_parameters == [True, False]
        line = await setting.settled()
        assert (line.fallback, line.attempts) == (cause, 1)
        assert await setting.attempts() == {("prefill", "ok"): 1, ("decode", "bad"): 1, ("decode", "ok"): 1}


@BODIES
@pytest.mark.parametrize(
    ("stage", "down", "sent"),
    [("in_progress", "still", "just now"), *KEPT],
    ids=["fetching", *(" ".join(words) for words in KEPT)],
)
async def test_a_prefill_engine_that_goes_down_while_its_kv_is_fetched(stage, down, sent, body, monkeypatch):
    monkeypatch.setattr("gateway.proxy.serving.transfer_legs.LOOK", 0.02)
    monkeypatch.setattr("gateway.proxy.serving.transfer_legs.FETCHED", 10.0 if sent == "just now" else -10.0)
    fetching = (stage, down) == ("in_progress", "still") and (sent == "just now" or body is STREAMED)
    decided = asyncio.Event()

    async def fetches(connection: Connection, head: bytes, request: bytes) -> None:
        await (connection.gone() if fetching else decided.wait())
        await decodes(connection, head, request)

    async with pair(decode=fetching_fails(fetches)) as setting:
        first, second = setting.servers
        second.fetching = {stage: 1}
        asked = asyncio.get_running_loop().create_task(setting.ask(body))
        await eventually(lambda: setting.decode.bodies, "the decode leg runs")
        if down == "still":
            first.still = True
        else:
            first.kill()
        await eventually(lambda: setting.gateway.down(first.url), "the prefill engine is seen to be down")
        until = second.scrapes + 5
        await eventually(lambda: second.scrapes >= until, "the decode engine was asked since")
        decided.set()
        assert answered(body, *await asked)
        assert setting.decode.with_parameters == ([True, False] if fetching else [True])
        assert (await setting.settled()).fallback == ("prefill-down" if fetching else None)


@BODIES
async def test_an_engine_that_fails_without_parameters_as_well_has_the_last_word(body):
    async with pair(decode=says(FAILED)) as setting:
        status, content = await setting.ask(body)
        assert (status, orjson.loads(content)) == (500, ERROR)
        assert setting.decode.with_parameters == [True, False]
        assert (await setting.settled()).outcome == "engine_error"


async def test_kv_that_is_too_old_is_not_asked_for(monkeypatch):
    monkeypatch.setattr("gateway.proxy.serving.connectors.nixl.PULL_LEASE", -1.0)
    async with pair() as setting:
        assert answered(CHAT, *await setting.ask(CHAT))
        assert setting.decode.bodies == [CHAT]
        assert (await setting.settled()).fallback == "expired"


def response_event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + b"data: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


CREATED = response_event("response.created", response={"id": "r", "usage": None})
SPOKEN = response_event("response.output_text.delta", delta="Hi") + response_event("response.completed", response={})


ERROR_EVENT = b"data: " + orjson.dumps(ERROR) + b"\n\n"
MESSAGE_START = b'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n'
MESSAGE_ERROR = b'event: error\ndata: {"type": "error", "error": {"type": "internal_error", "message": "x"}}\n\n'
MESSAGE = MESSAGE_START + b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": {}}\n\n'
ANNOUNCED = {
    "/v1/chat/completions": (ROLE, ERROR_EVENT + DONE, ROLE + WORD + DONE),
    "/v1/responses": (CREATED, ERROR_EVENT, CREATED + SPOKEN),
    "/v1/messages": (MESSAGE_START, MESSAGE_ERROR, MESSAGE),
}
"""By route: what vLLM sends before it knows whether it can fetch the KV, the error if it cannot, and a whole answer."""


@pytest.mark.parametrize("path", list(ANNOUNCED))
@pytest.mark.parametrize("failure", ["error", "error in one piece", "cut", "reset", "stuck"])
async def test_an_answer_that_was_only_announced_is_not_the_clients_yet(failure, path):
    announced, error, whole = ANNOUNCED[path]

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        if "kv_transfer_params" not in orjson.loads(body):
            await connection.say(STREAM_HEAD + chunked(whole))
        elif failure.startswith("error"):
            pieces = (announced + error,) if failure.endswith("piece") else (announced, error)
            await connection.say(STREAM_HEAD + chunked(*pieces))
        else:
            await connection.say(STREAM_HEAD + chunked(announced, end=False))
            if failure == "stuck":
                await connection.gone()
            elif failure == "reset":
                connection.reset()
            else:
                connection.writer.close()

    timeouts = replace(PATIENT, handover=SOON) if failure == "stuck" else PATIENT
    async with pair(decode=post, timeouts=timeouts) as setting:
        body = {"model": "sim", "input": "Hello", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
        reply = await setting.gateway.client.post(path, json={**body, "stream": True})
        assert (reply.status_code, reply.content) == (200, whole)
        assert setting.decode.with_parameters == [True, False]
        assert (await setting.settled()).fallback == ("decode-stuck" if failure == "stuck" else "decode-error")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages"])
async def test_an_answer_without_output_is_an_answer(path):
    announced = {
        "/v1/completions": b'data: {"choices": [], "usage": null}\n\n' + DONE,
        "/v1/responses": CREATED,
        "/v1/messages": b'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n',
    }[path]
    async with pair(decode=says(STREAM_HEAD + chunked(announced))) as setting:
        body = {"model": "sim", "prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}]}
        reply = await setting.gateway.client.post(path, json={**body, "max_tokens": 5, "stream": True})
        assert (reply.status_code, reply.content) == (200, announced)
        assert (await setting.settled()).fallback is None


async def test_an_unstreamed_answer_that_is_late_goes_to_another_engine():
    """Nothing tells it from one that cannot fetch, and a third of the client's patience is enough for each."""
    second = Told(decodes)
    timeouts = replace(PATIENT, head=SOON)
    async with pair(prefills, hangs, second, timeouts=timeouts) as setting:
        for _ in range(6):
            assert answered(CHAT, *await setting.ask(CHAT))
            if (await setting.settled()).attempts == 2:
                break
        else:
            pytest.fail("the engine that hangs was never asked")
        assert all(setting.decode.with_parameters), "it is not asked again"
        assert second.with_parameters[-1], "the prompt is handed over anew"
