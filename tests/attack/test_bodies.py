"""Bodies that cost more than they should: one client's must not stop the others' streams, nor take gigabytes."""

from __future__ import annotations

import pytest

from tests.attack.crowd import crowd
from tests.attack.gateway import MIB, attacked
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import raw_client, raw_post

COUNT = 4_000_000
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
BODIES = {
    "lists_stall": (COMPLETIONS, b'{"model":"sim","prompt":[' + b"[1]," * COUNT + b"[1]]}"),
    "texts_bomb": (COMPLETIONS, b'{"model":"sim","prompt":[' + b'"a",' * COUNT + b'"a"]}'),
    "objects_bomb": (CHATS, b'{"model":"sim","messages":[{}],"tools":[' + b'{"a":1},' * COUNT + b"{}]}"),
    "messages_bomb": (CHATS, b'{"model":"sim","messages":[' + b'{"a":1},' * COUNT + b"{}]}"),
    "keys_bomb": (
        COMPLETIONS,
        b'{"model":"sim","prompt":"a"' + b"".join(b',"%d":1' % i for i in range(1_900_000)) + b"}",
    ),
}
WIDE = 120 * MIB
"""For a body of 32 MB, twice in memory while it is looked at. Unbounded, they took 243 MB to 2 GB."""


@pytest.mark.parametrize("name", list(BODIES))
async def test_a_body_of_millions_of_values(tmp_path, name):
    """[lists_stall, texts_bomb, objects_bomb] It is refused before anything is made of it."""
    path, body = BODIES[name]
    async with ScriptedEngine() as engine, attacked(tmp_path, engine.url) as gateway:
        await crowd(gateway.url, requests=50, clients=5)
        asked = engine.posts
        gateway.forget_peak()
        before = gateway.rss()
        async with raw_client(gateway.url) as client:
            await client.say(raw_post(body, path=path))
            reply = await client.reply()
        assert reply.status == 413, reply
        assert b"The body holds more than" in reply.body
        assert gateway.peak() - before < WIDE
        assert engine.posts == asked
        assert (await crowd(gateway.url, requests=50, clients=5)).ended == {"ok": 50}
        gateway.unharmed()


async def test_genuine_prompts_that_look_like_it(tmp_path):
    """What stands in a string does not count, nor do a million ids."""
    source = b'{\\"a\\": [1, {\\"b\\": [2, 3]}], \\"c\\": [[]]},' * 50_000
    async with ScriptedEngine() as engine, attacked(tmp_path, engine.url) as gateway:
        async with raw_client(gateway.url) as client:
            for path, body in (
                (CHATS, b'{"model":"sim","messages":[{"role":"user","content":"' + source + b'"}]}'),
                (COMPLETIONS, b'{"model":"sim","prompt":[' + b"128000," * 999_999 + b"1]}"),
                (CHATS, b'{"model":"sim","messages":[' + b'{"role":"user","content":"hi"},' * 5_000 + b"{}]}"),
            ):
                await client.say(raw_post(body, path=path))
                assert (await client.reply()).status == 200
        assert engine.posts == 3
        gateway.unharmed()
