"""A committed answer on its way to its client, who may have no room, or leave; and an engine that breaks; without
sockets."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import orjson
import pytest

from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.relay import SLICE, UNSEEN
from gateway.scheduling.settings import PluginSettings, ProfileSettings
from tests.support.chat import CHAT, DONE, ROLE, STREAMED, TELLING, WORD
from tests.support.gateway import IN_TURN
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene, recorded
from tests.support.wire import STREAM_HEAD, answer, chunked

ERROR = b'data: {"error":{"message":"no","type":"InternalServerError","code":500}}\n\n'


def reset() -> ConnectionResetError:
    return ConnectionResetError("reset")


def said_last(body: bytes) -> dict[str, Any]:
    """The last event of a chat's stream that ended with an error."""
    *_, event, end = body.removesuffix(b"\n\n").split(b"\n\n")
    assert end == b"data: [DONE]"
    found: dict[str, Any] = orjson.loads(event.removeprefix(b"data: "))
    return found


# Back-pressure


async def test_an_engine_is_not_read_on_until_its_client_has_taken():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING, room=0), ROLE)
        for _ in range(3):
            assert side.paused
            side.say(chunked(WORD, end=False))
            said = reply.body
            await scene.turn()
            assert reply.body == said, "it waits at the engine"
            reply.take()
            assert not side.paused
            await scene.turn()
            assert reply.body == said + WORD
        reply.take()
        side.say(chunked(DONE))
        reply.take()
        await task
        assert reply.body == ROLE + WORD * 3 + DONE
        assert scene.line.outcome == "ok"
        scene.has_all_back()


async def test_a_client_that_takes_nothing_for_too_long_is_left():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(STREAMED, room=0), ROLE)
        assert reply.idle == scene.config.timeouts.idle
        reply.take_nothing()
        with pytest.raises(ClientGone):
            await task
        assert side.closed
        assert (scene.line.outcome, scene.line.phase) == ("cancelled", "streaming")
        scene.has_all_back()


async def test_the_end_of_a_stream_is_waited_for_as_well():
    """Its engine is free by then."""
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING, room=len(ROLE)), ROLE)
        side.say(chunked(WORD, DONE))
        assert reply.ended
        assert scene.endpoints[0].load.requests == 0
        await scene.turn()
        assert not task.done()
        reply.take_nothing()
        with pytest.raises(ClientGone):
            await task
        assert (scene.line.outcome, scene.line.phase) == ("cancelled", "done")
        scene.has_all_back()


async def test_a_large_whole_answer_is_written_in_slices():
    body = b"a" * (2 * SLICE + 1)
    async with Scene(1) as scene:
        client = MemoryClient(CHAT, room=0)
        task = scene.ask(client)
        (await scene.engines.request()).say(answer(body))
        await client.begun.wait()
        reply = client.answer
        for count in (1, 2, 3):
            await scene.turn()
            assert len(reply.sends) == count
            assert reply.ended == (count == 3)
            reply.take()
        await task
        assert reply.body == body
        scene.has_all_back()


@pytest.mark.parametrize("size", [10, 2 * SLICE])
async def test_a_client_that_takes_nothing_of_a_whole_answer_is_left(size):
    async with Scene(1) as scene:
        client = MemoryClient(CHAT, room=0)
        task = scene.ask(client)
        (await scene.engines.request()).say(answer(b"a" * size))
        await client.begun.wait()
        await scene.turn()
        client.answer.take_nothing()
        with pytest.raises(ClientGone):
            await task
        assert (scene.line.outcome, scene.line.phase) == ("cancelled", "done")
        scene.has_all_back()


# What plugins tell the client


@pytest.mark.parametrize("body", [CHAT, STREAMED])
async def test_a_session_token_comes_in_the_answer_s_head_and_brings_the_next_request_back(body):
    token = PluginSettings("pin", "session-pin")
    profile = ProfileSettings(name="default", filters=("healthy", "pin"), picker="turn")
    async with Scene(3, plugins=(*IN_TURN["plugins"], token), profiles=(profile,)) as scene:
        served = []
        tokens = []
        for _ in range(3):
            client = MemoryClient(body, headers=[("x-session-token", token) for token in tokens[-1:]])
            task = scene.ask(client)
            side = await scene.engines.request()
            side.say(answer(b"{}") if body is CHAT else STREAM_HEAD + chunked(ROLE, DONE))
            await task
            heads = dict(client.answer.headers)
            assert heads["x-request-id"] == "id"
            tokens.append(heads["x-session-token"])
            served.append(scene.notes.legs[-1][0])
        assert served == [served[0]] * 3, "not in turn"
        assert tokens == [b64encode(served[0].encode()).decode()] * 3


# An engine that breaks after commit


async def test_a_stream_that_breaks_ends_with_an_error_and_no_other_engine():
    async with Scene(2) as scene:
        told: list[str] = []
        recorded(told, scene.fleet, "report_broken", "broken")
        task, side, reply = await scene.begun(MemoryClient(TELLING), ROLE)
        side.say(chunked(WORD, end=False))
        side.end(reset())
        await task
        assert reply.body.startswith(ROLE + WORD)
        assert "died" in said_last(reply.body)["error"]["message"]
        assert (reply.ended, reply.was_cut, reply.attended) == (True, False, False)
        assert len(scene.engines.sides) == 1
        line = scene.line
        assert (line.outcome, line.status, line.phase, line.output_tokens) == ("broken", 200, "streaming", 1)
        assert line.error.startswith("died")
        assert scene.notes.legs == [("e0:1", "decode", "died")]
        assert told == ["broken"]
        scene.has_all_back()


async def test_what_breaks_within_an_event_ends_that_first():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING), ROLE)
        side.say(chunked(WORD[:10], end=False))
        side.end(reset())
        await task
        assert reply.body.startswith(ROLE + WORD[:10] + b"\n\n")
        assert "error" in said_last(reply.body)
        scene.has_all_back()


async def test_a_stream_that_becomes_garbage():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING), ROLE)
        side.say(b"no size of a chunk\r\n")
        await task
        assert "garbage" in said_last(reply.body)["error"]["message"]
        assert side.closed
        assert scene.line.outcome == "broken"
        scene.has_all_back()


async def test_a_compressed_stream_that_breaks_is_cut():
    """Nothing can be said in the middle of it."""
    async with Scene(1) as scene:
        zipping = zlib.compressobj(wbits=31)
        zipped = zipping.compress(ROLE + WORD) + zipping.flush(zlib.Z_SYNC_FLUSH)
        client = MemoryClient(TELLING)
        task = scene.ask(client)
        side = await scene.engines.request()
        head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        side.say(head + chunked(zipped, end=False))
        await client.begun.wait()
        side.end(reset())
        await task
        assert (client.answer.body, client.answer.was_cut) == (zipped, True)
        assert (scene.line.outcome, scene.line.output_tokens) == ("broken", 1)
        scene.has_all_back()


async def test_one_that_cannot_be_decompressed_breaks():
    async with Scene(1) as scene:
        client = MemoryClient(TELLING)
        task = scene.ask(client)
        side = await scene.engines.request()
        head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        zipping = zlib.compressobj(wbits=31)
        side.say(head + chunked(zipping.compress(ROLE + WORD) + zipping.flush(zlib.Z_SYNC_FLUSH), end=False))
        await client.begun.wait()
        side.say(chunked(b"\xff" * 2000, end=False))
        await task
        assert client.answer.was_cut
        assert (scene.line.outcome, side.closed) == ("broken", True)
        scene.has_all_back()


async def test_a_client_that_leaves_a_broken_stream_has_seen_it_break():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING, room=len(ROLE)), ROLE)
        side.end(reset())
        await scene.turn()
        reply.take_nothing()
        with pytest.raises(ClientGone):
            await task
        assert (scene.line.outcome, scene.line.status) == ("broken", 200)
        scene.has_all_back()


async def test_a_stream_that_ends_with_the_engines_error_is_its_error():
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING), ROLE, WORD)
        side.say(chunked(ERROR, DONE))
        await task
        assert reply.body == ROLE + WORD + ERROR + DONE
        assert (scene.line.outcome, scene.line.phase) == ("engine_error", "done")
        scene.has_all_back()


# What is counted


@pytest.mark.parametrize("parts", [1, UNSEEN - 1, UNSEEN, 3 * UNSEEN + 1])
async def test_parts_that_are_looked_at_together_are_all_counted(parts):
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING), ROLE)
        for _ in range(parts):
            side.say(chunked(WORD, end=False))
        side.end(reset())
        await task
        assert reply.body.startswith(ROLE + WORD * parts)
        assert scene.line.output_tokens == parts
        scene.has_all_back()


async def test_the_first_output_is_seen_when_it_comes():
    async with Scene(1) as scene:
        task, side, _ = await scene.begun(MemoryClient(TELLING), ROLE)
        scene.clock.now += 3
        side.say(chunked(WORD, end=False))
        scene.clock.now += 4
        side.say(chunked(WORD, DONE))
        await task
        assert (scene.line.ttft, scene.line.duration) == (3, 7)
        scene.has_all_back()


async def test_a_stream_that_came_whole():
    async with Scene(1) as scene:
        client = MemoryClient(TELLING)
        task = scene.ask(client)
        (await scene.engines.request()).say(STREAM_HEAD + chunked(ROLE, WORD, DONE))
        await task
        assert client.answer.body == ROLE + WORD + DONE
        assert (scene.line.outcome, scene.line.output_tokens) == ("ok", 1)
        scene.has_all_back()
