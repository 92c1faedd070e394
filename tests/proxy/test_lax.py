"""Covers: gateway/api/lax.py, gateway/api/parse.py.

Bodies that vLLM takes although they are not of the types that it asks for: they are taken here, and what goes on to
an engine means the same to it.
"""

from __future__ import annotations

import orjson
import pytest

from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import STREAM_HEAD, answer, chunked, raw_client, raw_post


@pytest.mark.parametrize(
    ("stream", "streams"), [(1, True), ("true", True), ("YES", True), (0, False), ("off", False), (1.0, True)]
)
async def test_a_boolean_in_other_words(stream, streams):
    asked = []

    async def post(connection, head, body):
        asked.append(orjson.loads(body))
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, DONE) if streams else answer(COMPLETE))

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
        assert (reply.status_code, reply.content) == (200, ROLE + WORD + DONE if streams else COMPLETE)
        assert (asked[0]["stream"], gateway.lines[-1].stream) == (stream, streams)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("model", ["sim", ""])
async def test_other_encodings_and_an_empty_model(encoding, model):
    asked = []
    said = {**STREAMED, "model": model, "stream": False, "user": "h\u00e9llo \u4f60"}

    async def post(connection, head, body):
        asked.append(orjson.loads(body))
        await connection.say(answer(COMPLETE))

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        async with raw_client(gateway.url) as client:
            await client.say(raw_post(orjson.dumps(said).decode().encode(encoding)))
            assert (await client.reply()).body == COMPLETE
    assert asked == [{**said, "model": "sim"}]
