"""The simulator announces its blocks as vLLM does: the same requests to both, and the events' bytes compared.

Events are read through the replay socket, which hands out everything from a sequence number on: nothing is missed,
whenever the reader comes. Hashes are an engine's own; they are compared by when they first appear.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.engines.engine import BLOCK_SIZE, KV_BYTES, MAX_MODEL_LEN, SERVED_NAME, TOKEN_BYTES, Engine

END = b"\xff" * 8
COMPLETION = "/v1/completions"
ANSWER_SECONDS = 20.0
STEP_TOKENS = 2048  # of vLLM's CPU backend: a longer prompt is computed, and announced, in several steps


@dataclass(slots=True)
class Source:
    """An engine, as a client and as a publisher. ``position``: the sequence number after the last one read."""

    client: httpx.AsyncClient
    replay: str
    context: zmq.asyncio.Context
    position: int = 0
    marks: itertools.count[int] = field(default_factory=lambda: itertools.count(40))

    async def complete(self, tokens: Sequence[int], **more: Any) -> None:
        """Have a prompt computed, and one token generated."""
        body = {"model": SERVED_NAME, "prompt": list(tokens), "max_tokens": 1, "temperature": 0, **more}
        (await self.client.post(COMPLETION, json=body)).raise_for_status()

    async def reset(self) -> None:
        (await self.client.post("/reset_prefix_cache")).raise_for_status()

    async def events(self) -> list[Any]:
        """All events since the last call. A last block of its own shows that none is still on its way."""
        mark = [next(self.marks)] * BLOCK_SIZE
        await self.complete(mark)
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                batches = await self.read(self.position)
                events = [event for _, _, (_, of_batch, _) in batches for event in of_batch]
                if events and events[-1].get("token_ids") == mark:
                    self.position = batches[-1][1] + 1
                    return events[:-1]

    async def read(self, start: int) -> list[tuple[bytes, int, Any]]:
        """The replay's batches from ``start`` on: topic, sequence number, payload; the END marker was seen."""
        socket = self.context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, 0)
        try:
            socket.connect(self.replay)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            batches = []
            async with asyncio.timeout(ANSWER_SECONDS):
                while (frames := await socket.recv_multipart())[2] != END:
                    empty, topic, sequence, payload = frames
                    assert empty == b""
                    batches.append((topic, int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)))
            assert frames == [b"", b"", END, b""]
            return batches
        finally:
            socket.close()


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(params=["int", "bytes"])
async def sources(
    request: pytest.FixtureRequest, engines: list[Engine], model_folder: Path, context: zmq.asyncio.Context
) -> AsyncIterator[tuple[Source, Source]]:
    """vLLM and the simulator, of the same sizes and with empty caches, by both kinds of hashes."""
    engine = next(engine for engine in engines if engine.hashes == request.param)
    engine.reset_cache()
    settings = EngineSettings(
        served_name=SERVED_NAME,
        block_size=BLOCK_SIZE,
        num_blocks=KV_BYTES // TOKEN_BYTES // BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_batched_tokens=STEP_TOKENS,
        tokenizer=str(model_folder),
        bytes_hashes=request.param == "bytes",
        connector="none",
    )
    server = EngineServer(settings)
    await server.start()
    assert server.kv_replay is not None
    async with (
        httpx.AsyncClient(base_url=engine.url, timeout=60.0) as real,
        httpx.AsyncClient(base_url=server.url, timeout=60.0) as simulated,
    ):
        both = (
            Source(real, engine.kv_source()["replay_endpoint"], context),
            Source(simulated, server.kv_replay, context),
        )
        for source in both:
            await source.events()  # what earlier tests caused
        yield both
    await server.close()


def named(events: Sequence[Mapping[str, Any]], *, generated: bool = False) -> list[dict[str, Any]]:
    """Events with each hash replaced by its kind and a number, in order of appearance.

    ``generated``: their tokens are the engine's own, so that only how many there are is kept.
    """
    numbers: dict[Any, str] = {}

    def name(value: Any) -> str | None:
        if value is None:
            return None
        kind = f"{len(value)} bytes" if isinstance(value, bytes) else "u64" if 0 <= value < 2**64 else "out of range"
        return numbers.setdefault(value, f"{kind} #{len(numbers)}")

    found = []
    for event in events:
        one = dict(event)
        if "parent_block_hash" in one:
            one["parent_block_hash"] = name(one["parent_block_hash"])
        if "block_hashes" in one:
            one["block_hashes"] = [name(value) for value in one["block_hashes"]]
        if generated and "token_ids" in one:
            one["token_ids"] = len(one["token_ids"])
        found.append(one)
    return found


def tokens(start: int, blocks: float) -> list[int]:
    """A prompt of so many blocks."""
    return [10 + (start * 37 + i * i) % 300 for i in range(int(blocks * BLOCK_SIZE))]


async def same(sources: tuple[Source, Source], *, generated: bool = False) -> list[dict[str, Any]]:
    """Require equal events of both since the last time; return them."""
    real, simulated = [named(await source.events(), generated=generated) for source in sources]
    assert simulated == real
    return real


async def test_stored_blocks(sources: tuple[Source, Source]) -> None:
    """New, found again, gone on with, of whole blocks, of another tenant."""
    for source in sources:
        await source.complete(tokens(1, 3.5))
        await source.complete(tokens(1, 3.5))
        await source.complete(tokens(1, 3.5) + tokens(2, 2))
        await source.complete(tokens(3, 2))
        await source.complete(tokens(3, 2))
        await source.complete(tokens(1, 3.5), cache_salt="tenant")
        await source.complete(tokens(4, 0.5))
    events = await same(sources)
    assert {event["type"] for event in events} == {"BlockStored"}
    assert events[0]["parent_block_hash"] is None
    assert events[0]["token_ids"] == tokens(1, 3)
    assert any(event.get("extra_keys", [None])[0] == ["tenant"] for event in events)


async def test_generated_blocks(sources: tuple[Source, Source]) -> None:
    for source in sources:
        await source.complete(tokens(5, 1.5), max_tokens=100, ignore_eos=True)
    events = await same(sources, generated=True)
    assert [event["token_ids"] for event in events] == [BLOCK_SIZE] * 4


async def test_removed_blocks(sources: tuple[Source, Source]) -> None:
    """A pool that is too small: least recently used first, one hash to an event."""
    for source in sources:
        await source.complete(tokens(6, 100))
        await source.complete(tokens(7, 40))
        await source.complete(tokens(6, 50))
        await source.complete(tokens(8, 80))
        await source.complete(tokens(6, 100))
    events = await same(sources)
    removed = [event for event in events if event["type"] == "BlockRemoved"]
    assert len(removed) > 80
    assert all(len(event["block_hashes"]) == 1 for event in removed)


async def test_cleared_blocks(sources: tuple[Source, Source]) -> None:
    """A reset is announced with the next step, before what that step stores."""
    for source in sources:
        await source.complete(tokens(9, 2))
        await source.reset()
        await source.complete(tokens(9, 2))
    events = await same(sources)
    assert [event["type"] for event in events] == ["BlockStored", "AllBlocksCleared", "BlockStored"]


async def test_batches(sources: tuple[Source, Source]) -> None:
    """Topic, numbering without holes, and the batch around the events."""
    for source in sources:
        start = source.position
        for prompt in range(3):
            await source.complete(tokens(20 + prompt, 1.5))
        await source.events()
        batches = await source.read(start)
        assert [topic for topic, _, _ in batches] == [b""] * len(batches)
        assert [sequence for _, sequence, _ in batches] == list(range(start, start + len(batches)))
        for _, _, (at, _events, rank) in batches:
            assert isinstance(at, float)
            assert rank == 0
        assert await source.read(source.position) == []


async def test_live_messages(
    sources: tuple[Source, Source], engines: list[Engine], context: zmq.asyncio.Context
) -> None:
    """What a subscriber hears is what the replay tells: three frames, of the same bytes."""
    for source in sources:
        told = (await source.client.get("/kv_event_sources")).json()["0"]
        socket = context.socket(zmq.SUB)
        socket.set(zmq.LINGER, 0)
        socket.subscribe(b"")
        socket.connect(told["endpoint"].replace("*", "127.0.0.1"))
        frames: list[bytes] = []
        async with asyncio.timeout(ANSWER_SECONDS):
            for attempt in itertools.count(30):  # the first ones may be before the subscription has arrived
                await source.complete(tokens(attempt, 1))
                if await socket.poll(200):
                    frames = await socket.recv_multipart()
                    break
        socket.close()
        topic, sequence, payload = frames
        number = int.from_bytes(sequence, "big")
        assert (await source.read(number))[0] == (topic, number, msgspec.msgpack.decode(payload))
        await source.events()
