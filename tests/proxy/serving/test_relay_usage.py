"""Usage that a client did not ask for is read, and does not reach it; without sockets."""

from __future__ import annotations

import gzip

import orjson
import pytest

from gateway.api.settings import PassThroughSettings
from tests.support.chat import CHAT, DONE, ROLE, STREAMED, TELLING, WORD
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene
from tests.support.wire import STREAM_HEAD, answer, chunked

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'
REPORT = b'data: {"choices":[],"usage":' + orjson.dumps(USAGE) + b"}\n\n"


async def test_usage_that_only_we_asked_for_is_taken_out():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(STREAMED), ROLE, WORD)
        assert side.asked["stream_options"] == {"include_usage": True}
        side.say(chunked(FINISH, end=False))
        await scene.turn()
        assert reply.body == ROLE + WORD, "the end of the choice waits for what may come of its engine's fingerprint"
        side.say(chunked(REPORT, DONE))
        await task
        assert reply.body == ROLE + WORD + FINISH + DONE
        line = scene.line
        assert (line.reported_prompt_tokens, line.output_tokens, line.cached_tokens) == (7, 2, 4)
        scene.has_all_back()


async def test_what_was_held_back_passes_before_the_error():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(STREAMED), ROLE, WORD)
        side.say(chunked(FINISH, end=False))
        side.end(ConnectionResetError("reset"))
        await task
        assert reply.body.startswith(ROLE + WORD + FINISH)
        assert b"died" in reply.body
        scene.has_all_back()


async def test_what_was_held_back_passes_where_nothing_follows_it():
    """Another engine than vLLM may report no usage, and end its stream without a word."""
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(STREAMED), ROLE, WORD)
        side.say(chunked(FINISH))
        await task
        assert reply.body == ROLE + WORD + FINISH
        assert (reply.ended, scene.line.outcome) == (True, "ok")
        scene.has_all_back()


async def test_usage_that_the_client_asked_for_passes():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING), ROLE, WORD)
        side.say(chunked(FINISH, REPORT, DONE))
        await task
        assert reply.body == ROLE + WORD + FINISH + REPORT + DONE
        assert scene.line.cached_tokens == 4
        scene.has_all_back()


async def test_usage_is_not_asked_for_where_that_is_off():
    async with Scene(1, pass_through=PassThroughSettings(ask_usage=False)) as scene:
        task, side, _ = await scene.begun(MemoryClient(STREAMED), ROLE, WORD)
        assert "stream_options" not in side.asked
        side.say(chunked(FINISH, DONE))
        await task
        assert (scene.line.outcome, scene.line.cached_tokens) == ("ok", None)
        scene.has_all_back()


async def test_an_engine_that_refuses_to_report_is_asked_without():
    refusal = b'{"error":{"message":"Unknown field stream_options","code":400}}'
    async with Scene(1) as scene:
        client = MemoryClient(STREAMED)
        task = scene.ask(client)
        (await scene.engines.request()).say(answer(refusal, status="400 Bad Request"))
        again = await scene.engines.request()
        assert "stream_options" not in again.asked
        again.say(STREAM_HEAD + chunked(ROLE, WORD, DONE))
        await task
        assert client.answer.body == ROLE + WORD + DONE
        assert [leg[2] for leg in scene.notes.legs] == ["engine_error", "ok"]
        scene.has_all_back()


@pytest.mark.parametrize("zipped", [False, True])
async def test_a_whole_answers_usage_is_read(zipped):
    said = orjson.dumps({"choices": [], "usage": USAGE})
    async with Scene(1) as scene:
        client = MemoryClient(CHAT)
        task = scene.ask(client)
        sent = gzip.compress(said) if zipped else said
        extra = b"Content-Encoding: gzip\r\n" if zipped else b""
        (await scene.engines.request()).say(answer(sent, extra=extra))
        await task
        assert client.answer.body == sent
        assert (scene.line.reported_prompt_tokens, scene.line.cached_tokens) == (7, 4)
        scene.has_all_back()
