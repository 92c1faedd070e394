"""Bodies that vLLM takes, or refuses, for their types."""

from __future__ import annotations

import orjson

from tests.attack.gateway import attacked
from tests.support.chat import CHAT
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import raw_client, raw_post

TAKEN = [
    *(orjson.dumps({**CHAT, "stream": stream}) for stream in (1, 0, "true", "yes", "off")),
    orjson.dumps({**CHAT, "model": ""}),
    b"\xef\xbb\xbf" + orjson.dumps(CHAT),
    orjson.dumps(CHAT).decode().encode("utf-16"),
]
REFUSED = [{"vllm_xargs": "x"}, {"kv_transfer_params": "x"}, {"stream": 2}, {"stream": "oui"}]


async def test_types_as_vllm_takes_them(tmp_path):
    """[stream_as_vllm] 11 of 157 requests had another status than vLLM's."""
    async with ScriptedEngine() as engine, attacked(tmp_path, engine.url) as gateway:
        async with raw_client(gateway.url) as client:
            for body in TAKEN:
                await client.say(raw_post(body))
                assert (await client.reply()).status == 200, body
            asked = engine.posts
            for fields in REFUSED:
                await client.say(raw_post(orjson.dumps({**CHAT, **fields})))
                assert (await client.reply()).status == 400, fields
        assert engine.posts == asked == len(TAKEN)
        gateway.unharmed()
