"""Covers: gateway/proxy/serving/transfer_legs.py, gateway/proxy/upstream/legs.py.

Connectors whose legs wait for each other: both go out at once, and neither is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib

import orjson
import pytest

from tests.support.chat import CHAT, DONE, ROLE, STREAMED, WORD
from tests.support.gateway import PATIENT
from tests.support.split import (
    ERROR,
    FAILED,
    FAILED_STREAM,
    Told,
    answered,
    decodes,
    pair,
    prefills,
    resets,
    says,
    talks_garbage,
)
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, ScriptedServer, answer, chunked

BODIES = pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])


class Room:
    """Two scripted engines: each answers when the other has been asked with the same room, or the same transfer."""

    def __init__(self) -> None:
        self.prefilling: dict[int | str, asyncio.Event] = {}
        self.decoding: dict[int | str, asyncio.Event] = {}
        self.gone = 0

    async def prefill(self, connection: Connection, head: bytes, body: bytes) -> None:
        if await self._meets(connection, body, self.prefilling, self.decoding):
            await connection.say(answer(b"{}"))

    async def decode(self, connection: Connection, head: bytes, body: bytes) -> None:
        if await self._meets(connection, body, self.decoding, self.prefilling):
            await decodes(connection, head, body)

    async def _meets(self, connection, body, mine, others) -> bool:
        """False if the peer left before the other leg came. A body without a meeting is served at once."""
        fields = orjson.loads(body)
        room = fields.get("bootstrap_room") or fields.get("kv_transfer_params", {}).get("transfer_id")
        if room is None:
            return True
        mine.setdefault(room, asyncio.Event()).set()
        loop = asyncio.get_running_loop()
        came = loop.create_task(others.setdefault(room, asyncio.Event()).wait())
        left = loop.create_task(connection.reader.read(1))
        await asyncio.wait((came, left), return_when=asyncio.FIRST_COMPLETED)
        if came.done():
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            return True
        came.cancel()
        self.gone += 1
        connection.writer.close()
        return False


def sglang(*posts, **parameters):
    return pair(*posts, connector="sglang", **({"timeouts": PATIENT} | parameters))


@contextlib.asynccontextmanager
async def mooncake(*posts, **parameters):
    async def says_who_it_is(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.say(answer(b'{"0": {"engine_id": "e"}}'))

    async with ScriptedServer(says_who_it_is) as server:
        options = {"timeouts": PATIENT, "bootstrap_port": server.port} | parameters
        async with pair(*posts, connector="mooncake", **options) as setting:
            yield setting


@BODIES
async def test_both_legs_meet(body):
    room = Room()
    async with sglang(room.prefill, room.decode) as setting:
        for _ in range(3):
            assert answered(body, *await setting.ask(body))
        assert len(room.prefilling) == 3
        assert room.prefilling.keys() == room.decoding.keys()
        decoding = setting.decode.bodies[0]
        assert decoding.items() >= {**body, "bootstrap_host": "127.0.0.1"}.items()
        # Only a stream has options, and the prefill leg's answer is none.
        decoding.pop("stream_options", None)
        assert setting.prefill.bodies[0] == {**decoding, "stream": False}
        line = await setting.settled()
        assert (line.plan, line.fallback) == ("split", None)


FAILURES = pytest.mark.parametrize(
    "failure", [resets, talks_garbage, says(FAILED), says(answer(b"{}", status="503 Busy"))]
)


@BODIES
@FAILURES
async def test_a_prefill_that_fails_takes_the_decode_leg_back(failure, body):
    room = Room()
    async with mooncake(failure, room.decode) as setting:
        assert answered(body, *await setting.ask(body))
        await eventually(lambda: room.gone == 1, "the leg that waited in vain is closed")
        assert setting.decode.with_parameters == [True, False]
        line = await setting.settled()
        assert line.fallback is not None
        assert line.fallback.startswith("prefill-")


@BODIES
@FAILURES
async def test_where_no_engine_serves_alone_another_pair_cures_it(failure, body):
    room = Room()
    async with sglang(failure, room.decode, room.decode, also_prefills=(room.prefill,)) as setting:
        for _ in range(3):
            assert answered(body, *await setting.ask(body))
        assert room.gone >= 1
        assert all("bootstrap_room" in asked for asked in setting.decode.bodies)
        await setting.settled()


@pytest.mark.parametrize(
    ("body", "failure"),
    [(CHAT, FAILED), (STREAMED, FAILED), (STREAMED, FAILED_STREAM)],
    ids=["whole", "head", "first event"],
)
async def test_where_no_engine_serves_alone_a_decode_engine_that_fails_is_replaced(body, failure):
    room = Room()
    async with sglang(room.prefill, says(failure), room.decode) as setting:
        for _ in range(6):
            assert answered(body, *await setting.ask(body))
            if (await setting.settled()).attempts == 2:
                break
        else:
            pytest.fail("the engine that fails was never asked")


@BODIES
async def test_where_no_engine_serves_alone_the_engines_error_is_the_last_word(body):
    room = Room()
    async with sglang(room.prefill, says(FAILED)) as setting:
        status, content = await setting.ask(body)
        assert (status, orjson.loads(content)) == (500, ERROR)
        assert (await setting.settled()).outcome == "engine_error"


@BODIES
async def test_where_no_engine_serves_alone_and_there_is_no_other_pair(body):
    room = Room()
    async with sglang(resets, room.decode) as setting:
        assert (await setting.ask(body))[0] == 502
        assert ["bootstrap_room" in asked for asked in setting.decode.bodies] == [True]
        await setting.settled()


@BODIES
async def test_a_prefills_4xx_is_the_clients(body):
    room, said = Room(), b'{"error": {"code":422}}'
    async with sglang(says(answer(said, status="422 Unprocessable Entity")), room.decode) as setting:
        assert await setting.ask(body) == (422, said)
        await eventually(lambda: room.gone == 1, "the leg that waited in vain is closed")
        await setting.settled()


@BODIES
async def test_a_decode_engine_that_dies_takes_the_prefill_leg_back(body):
    room, other = Room(), Room()
    second = Told(other.decode)

    async def prefill(connection, head, request):
        await (other if second.bodies else room).prefill(connection, head, request)

    async with sglang(prefill, resets, second) as setting:
        for _ in range(4):
            assert answered(body, *await setting.ask(body))
            if setting.gateway.lines[-1].attempts == 2:
                break
        await eventually(lambda: room.gone == 1, "the leg that waited in vain is closed")
        await setting.settled()


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
async def test_a_decode_leg_that_fails_is_sent_once_more_alone(body):
    room = Room()

    async def decode(connection, head, request):
        await (says(FAILED) if "kv_transfer_params" in orjson.loads(request) else decodes)(connection, head, request)

    async with mooncake(room.prefill, decode) as setting:
        assert answered(body, *await setting.ask(body))
        await eventually(lambda: room.gone == 1, "the leg that waited in vain is closed")
        assert (await setting.settled()).fallback == "decode-error"


@BODIES
async def test_strict(body):
    room = Room()
    async with sglang(resets, room.decode, strict=True) as setting:
        assert (await setting.ask(body))[0] == 502
        await eventually(lambda: room.gone == 1, "the leg that waited in vain is closed")
        await setting.settled()


async def test_a_prefill_that_goes_on_beside_the_answer_ends_with_it():
    held = asyncio.Event()

    async def decode(connection, head, body):
        await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        await held.wait()
        await connection.say(chunked(DONE))

    gone = asyncio.Event()

    async def prefill(connection, head, body):
        await connection.gone()
        gone.set()
        connection.writer.close()

    async with sglang(prefill, decode) as setting:
        asked = asyncio.get_running_loop().create_task(setting.ask(STREAMED))
        await eventually(lambda: setting.prefill.bodies and setting.decode.bodies, "both legs run")
        held.set()
        assert answered(STREAMED, *await asked)
        await eventually(gone.is_set, "the prefill leg is closed")
        await setting.settled()


@pytest.mark.parametrize("committed", [False, True])
async def test_a_client_that_leaves_takes_both_legs_back(committed):
    left: list[str] = []

    async def decode(connection, head, body):
        if committed:
            await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
        await connection.gone()
        left.append("decode")
        connection.writer.close()

    async def prefill(connection, head, body):
        await connection.gone()
        left.append("prefill")
        connection.writer.close()

    async with sglang(prefill, decode) as setting:
        read = asyncio.Event()

        async def leaves():
            async with setting.gateway.client.stream("POST", "/v1/chat/completions", json=STREAMED) as reply:
                async for _ in reply.aiter_raw():
                    read.set()

        asked = asyncio.get_running_loop().create_task(leaves())
        await eventually(lambda: setting.prefill.bodies and setting.decode.bodies, "both legs run")
        if committed:
            await read.wait()
        asked.cancel()
        await eventually(lambda: sorted(left) == ["decode", "prefill"], "both connections are closed")
        line = await setting.settled()
        assert (line.outcome, line.phase) == ("cancelled", "streaming" if committed else "before-commit")


@BODIES
async def test_a_prefill_engine_that_is_gone_before_its_kv_was_fetched(body, monkeypatch):
    """Nobody tells the decode engine: it waits for what the other would have sent."""
    monkeypatch.setattr("gateway.proxy.serving.transfer_legs.LOOK", 0.02)

    async def waits(connection: Connection, head: bytes, asked: bytes) -> None:
        await (connection.gone() if "kv_transfer_params" in orjson.loads(asked) else decodes(connection, head, asked))

    async with mooncake(prefills, waits) as setting:
        first, second = setting.servers
        second.fetching = {"in_progress": 1}
        asked = asyncio.get_running_loop().create_task(setting.ask(body))
        await eventually(lambda: setting.decode.bodies and setting.prefill.bodies, "both legs run")
        first.kill()
        assert answered(body, *await asked)
        assert setting.decode.with_parameters == [True, False]
        assert (await setting.settled()).fallback == "prefill-down"
