"""Covers: gateway/proxy/serving/relay.py, gateway/api/events.py.

A stream that comes in other pieces is the same stream: to its client, byte by byte, and to whoever counts.
"""

from __future__ import annotations

import contextlib
import itertools

import orjson
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support.chat import DONE, ROLE, TELLING, event
from tests.support.examples import examples
from tests.support.gateway import PATIENT, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import Connection, chunked, raw_client, raw_post

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

STREAM = raw_post(orjson.dumps(TELLING))
EVENT_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"

TEXT = "Grüße, 世界 🌍"
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
LAST = b"data: " + orjson.dumps({"id": "chatcmpl-1", "choices": [], "usage": USAGE}) + b"\n\n"
RECORDED = [ROLE, event({"content": TEXT}), b": a comment\n\n", event({"content": TEXT[::-1]}), event({"content": "!"})]
RECORDED = [*RECORDED, LAST, DONE]
EVENTS_OF_IT = b"".join(RECORDED)
SAID = {
    "an event a chunk": EVENT_HEAD + CHUNKED + chunked(*RECORDED),
    "a byte a chunk": EVENT_HEAD + CHUNKED + chunked(*(bytes((byte,)) for byte in EVENTS_OF_IT)),
    "with a length": EVENT_HEAD + b"Content-Length: %d\r\n\r\n" % len(EVENTS_OF_IT) + EVENTS_OF_IT,
}


def cut(said: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(set(at)), len(said)]
    return [said[start:end] for start, end in itertools.pairwise(edges) if start < end]


async def seen_of(many: list[list[bytes]]) -> list[tuple[bytes, object]]:
    """What a client gets, and what is counted, of an engine that says each of these, in pieces."""
    left = iter(many)

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await connection.say_apart(next(left))

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedEngine(post))
        gateway = await stack.enter_async_context(running(config_for(server.url, timeouts=PATIENT)))
        client = await stack.enter_async_context(raw_client(gateway.url))
        bodies = []
        for _ in many:
            await client.say(STREAM)
            bodies.append((await client.reply()).body)
        counted = [(line.outcome, line.output_tokens, line.reported_prompt_tokens) for line in gateway.lines]
    return list(zip(bodies, counted, strict=True))


@pytest.mark.parametrize("name", list(SAID))
async def test_a_cut_at_any_one_place_changes_nothing(name):
    said = SAID[name]
    whole = (await seen_of([[said]]))[0]
    assert whole[0] == EVENTS_OF_IT
    places = range(1, len(said), 1 if name == "an event a chunk" else 5)
    assert all(seen == whole for seen in await seen_of([cut(said, [place]) for place in places]))


@examples(4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("name", list(SAID))
async def test_cuts_at_any_places_change_nothing(name, data):
    said = SAID[name]
    cuts = st.lists(st.integers(1, len(said) - 1), max_size=60)
    many = data.draw(st.lists(cuts, min_size=1, max_size=10))
    whole, *others = await seen_of([[said], *(cut(said, at) for at in many)])
    assert whole[0] == EVENTS_OF_IT
    assert all(seen == whole for seen in others)
