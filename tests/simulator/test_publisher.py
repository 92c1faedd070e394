"""KV events over real sockets: what a subscriber hears live, and what a replay says again."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.simulator.conftest import DATA, Running, Start

END = b"\xff" * 8


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


async def soon(socket: zmq.asyncio.Socket) -> list[bytes]:
    """The next message; fails if none comes."""
    async with asyncio.timeout(30):
        frames: list[bytes] = await socket.recv_multipart()
    return frames


@asynccontextmanager
async def subscribed(context: zmq.asyncio.Context, running: Running) -> AsyncIterator[zmq.asyncio.Socket]:
    """A subscriber that has been heard of: batches are sent until one arrives, and then it has them all."""
    with context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        assert running.server.kv_endpoint is not None
        socket.connect(running.server.kv_endpoint)
        publisher = running.server.service.sockets.publishers[0]
        while not await socket.poll(20):
            publisher.send(b"\x90")
        while await socket.poll(100):
            await socket.recv_multipart()
        yield socket


async def replay(context: zmq.asyncio.Context, address: str, start: int) -> list[list[bytes]]:
    with context.socket(zmq.DEALER) as socket:
        socket.rcvhwm = 0
        socket.connect(address)
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        messages = []
        while True:
            messages.append(await soon(socket))
            if messages[-1][-2] == END:
                return messages


def events(payload: bytes) -> list[Any]:
    decoded: list[Any] = msgspec.msgpack.decode(payload)[1]
    return decoded


async def test_a_step_is_one_batch_with_topic_number_and_payload(start: Start, context: zmq.asyncio.Context) -> None:
    running = await start(topic="kv@here@sim")
    async with subscribed(context, running) as socket:
        number = running.server.service.sockets.publishers[0].next_seq
        answer = await running.chat("a" * 40, max_tokens=20, return_token_ids=True)
        first, second = await soon(socket), await soon(socket)
    assert [len(first), first[0]] == [3, b"kv@here@sim"]
    assert [int.from_bytes(frames[1], "big") for frames in (first, second)] == [number, number + 1]
    ids = answer["prompt_token_ids"] + answer["choices"][0]["token_ids"]
    whole = len(answer["prompt_token_ids"]) // 16
    (prompt,), (output,) = events(first[2]), events(second[2])
    assert prompt["token_ids"] == ids[: whole * 16]
    assert output["token_ids"] == ids[whole * 16 : (whole + 1) * 16]
    assert output["parent_block_hash"] == prompt["block_hashes"][-1]


async def test_what_is_announced_is_what_is_held(engine: Running, context: zmq.asyncio.Context) -> None:
    for index in range(5):
        await engine.chat(f"{index}" * 30, max_tokens=40)
    assert engine.server.kv_replay is not None
    held: set[int] = set()
    for message in await replay(context, engine.server.kv_replay, 0):
        for event in events(message[-1]) if message[-1] else ():
            held.update(event["block_hashes"])
    assert held == {int.from_bytes(name[-8:], "big") for name in engine.server.cache.held}


async def test_a_replay_has_the_captured_frames(start: Start, context: zmq.asyncio.Context) -> None:
    running = await start(topic="kv@127.0.0.1:8101@tiny")
    await running.chat("a" * 40, max_tokens=40)
    assert running.server.kv_replay is not None
    ours = await replay(context, running.server.kv_replay, 0)
    real = recorded()
    assert [len(message) for message in ours] == [4] * len(ours)
    assert {len(message) for message in real} == {4}
    assert ours[-1] == real[-1] == [b"", b"", END, b""]
    assert [message[:3] for message in ours[:2]] == [message[:3] for message in real[:2]]


async def test_a_replay_begins_where_it_is_asked_to(engine: Running, context: zmq.asyncio.Context) -> None:
    await engine.chat(max_tokens=60)
    publisher = engine.server.service.sockets.publishers[0]
    assert publisher.replay is not None
    last = publisher.next_seq - 1
    messages = await replay(context, publisher.replay, last)
    assert [message[-2] for message in messages] == [last.to_bytes(8, "big"), END]
    assert len(await replay(context, publisher.replay, last + 1)) == 1


async def test_the_buffer_forgets_the_oldest(start: Start, context: zmq.asyncio.Context) -> None:
    running = await start(buffer_steps=3)
    await running.chat("a" * 40, max_tokens=100)
    publisher = running.server.service.sockets.publishers[0]
    assert publisher.replay is not None
    messages = await replay(context, publisher.replay, 0)
    first = int.from_bytes(messages[0][-2], "big")
    assert (len(messages), first) == (4, publisher.next_seq - 3)
    publisher.forget()
    assert len(await replay(context, publisher.replay, 0)) == 1


async def test_a_lost_batch_leaves_a_gap_that_a_replay_fills(engine: Running, context: zmq.asyncio.Context) -> None:
    publisher = engine.server.service.sockets.publishers[0]
    async with subscribed(context, engine) as socket:
        before = publisher.next_seq
        publisher.mute = 1
        publisher.send(b"\x91\x01")
        publisher.send(b"\x91\x02")
        assert (await soon(socket))[1:] == [(before + 1).to_bytes(8, "big"), b"\x91\x02"]
    assert publisher.replay is not None
    assert (await replay(context, publisher.replay, before))[0][-1] == b"\x91\x01"


async def test_found_blocks_are_announced_again_where_it_is_asked_for(
    engine: Running, context: zmq.asyncio.Context
) -> None:
    full = {"vllm_xargs": {"kv_cache_report_mode": "full"}, "return_token_ids": True}
    await engine.chat("a" * 40, max_tokens=1, **full)
    publisher = engine.server.service.sockets.publishers[0]
    seen = publisher.next_seq
    answer = await engine.chat("a" * 40, max_tokens=1, **full)
    assert publisher.replay is not None
    (event,) = events((await replay(context, publisher.replay, seen))[0][-1])
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert event["parent_block_hash"] is None
    assert event["token_ids"] == answer["prompt_token_ids"][:cached]


async def test_an_invalid_request_gets_no_answer(engine: Running, context: zmq.asyncio.Context) -> None:
    assert engine.server.kv_replay is not None
    with context.socket(zmq.DEALER) as socket:
        socket.connect(engine.server.kv_replay)
        await socket.send_multipart([b"", b"short"])
        await socket.send_multipart([b"", bytes(8)])
        assert await soon(socket) == [b"", b"", END, b""]
        assert not await socket.poll(50)


async def test_sources_are_listed_with_a_star_for_the_host(start: Start) -> None:
    running = await start(ranks=2, topic="t")
    answer = (await running.client.get("/kv_event_sources")).json()
    publishers = running.server.service.sockets.publishers
    assert list(answer) == ["0", "1"]
    for rank, publisher in enumerate(publishers):
        assert publisher.endpoint == answer[str(rank)]["endpoint"].replace("*", "127.0.0.1")
        assert publisher.replay == answer[str(rank)]["replay_endpoint"].replace("*", "127.0.0.1")
    ports = [int(answer[rank]["endpoint"].rpartition(":")[2]) for rank in "01"]
    assert ports[1] == ports[0] + 1, "as vLLM offsets them"
    assert answer["0"] | {"endpoint": "", "replay_endpoint": ""} == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "",
        "replay_endpoint": "",
        "buffer_steps": 10000,
        "hwm": 100000,
        "max_queue_size": 100000,
        "topic": "t",
    }


@pytest.mark.parametrize(("events_on", "expected"), [(False, {}), (True, None)])
async def test_events_and_replay_can_be_off(start: Start, events_on: bool, expected: dict[str, Any] | None) -> None:
    running = await start(kv_events=events_on, replay=False)
    await running.chat(max_tokens=40)
    sources = (await running.client.get("/kv_event_sources")).json()
    assert running.server.kv_replay is None
    assert (running.server.kv_endpoint is not None) == events_on
    if events_on:
        assert sources["0"]["replay_endpoint"] is None
    else:
        assert sources == expected


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("positional", [True, False])
async def test_every_encoding_is_sent(start: Start, context: zmq.asyncio.Context, raw: bool, positional: bool) -> None:
    running = await start(bytes_hashes=raw, positional_events=positional)
    await running.chat("a" * 40, max_tokens=1)
    assert running.server.kv_replay is not None
    event = events((await replay(context, running.server.kv_replay, 0))[0][-1])[0]
    assert isinstance(event, list) == positional
    hashes = event[1] if positional else event["block_hashes"]
    assert isinstance(hashes[0], bytes) == raw


async def test_ranks_hold_and_announce_their_own(start: Start, context: zmq.asyncio.Context) -> None:
    running = await start(ranks=2)
    await running.client.post(
        "/v1/completions",
        json={"prompt": "a" * 40, "max_tokens": 1},
        headers={"X-data-parallel-rank": "1"},
    )
    publishers = running.server.service.sockets.publishers
    assert publishers[0].replay is not None
    assert publishers[1].replay is not None
    assert len(await replay(context, publishers[0].replay, 0)) == 1
    batch = msgspec.msgpack.decode((await replay(context, publishers[1].replay, 0))[0][-1])
    assert batch[2] == 1


async def test_ports_are_given_back_and_taken_again(start: Start) -> None:
    first = await start()
    assert first.server.kv_endpoint is not None
    assert first.server.kv_replay is not None
    ports = {"kv_port": port(first.server.kv_endpoint), "replay_port": port(first.server.kv_replay)}
    await first.server.close()
    second = await start(port=first.server.port, **ports)
    assert (second.server.url, second.server.kv_endpoint) == (first.server.url, first.server.kv_endpoint)
    with pytest.raises(zmq.ZMQError):
        await start(**ports)


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def recorded() -> list[list[bytes]]:
    """The messages of the captured replay."""
    data = (DATA / "replay.bin").read_bytes()
    messages, place = [], 0
    while place < len(data):
        (count,) = struct.unpack_from(">I", data, place)
        place += 4
        frames = []
        for _ in range(count):
            (length,) = struct.unpack_from(">I", data, place)
            frames.append(data[place + 4 : place + 4 + length])
            place += 4 + length
        messages.append(frames)
    return messages
