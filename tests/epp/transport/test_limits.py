"""What a peer may not do: too many calls, too long heads, floods, and leaving unread what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from gateway.epp.messages import HttpBody, HttpHeaders, ProcessingRequest
from gateway.epp.stream import Stream
from gateway.epp.transport.frame_reader import MAX_PARTS
from gateway.epp.transport.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS,
    ConnectionFault,
    ErrorCode,
    frame,
    rst_stream,
    settings,
    window_update,
)
from gateway.epp.transport.limits import BURST, Limits, Rate
from tests.support.http2 import Echo, InMemory, Peer, peer, prefixed, requests, serving
from tests.support.wait import eventually

BEGUN = ProcessingRequest(request_headers=HttpHeaders())
BROKEN_OFF = prefixed(ProcessingRequest(request_body=HttpBody(body=bytes(30_000))))[:15_000]
RARE = 0.001
"""A rate of which a test sees the burst only: 0.01, which is none."""


async def test_calls_above_the_limit_are_refused_and_the_others_go_on() -> None:
    async with serving(Limits(streams=2)) as served, peer(served.port) as client:
        client.send(client.call(1, BEGUN), client.call(3, BEGUN), client.call(5, BEGUN))
        assert await client.reset(5) == ErrorCode.REFUSED_STREAM
        client.send(rst_stream(1, ErrorCode.CANCEL), client.call(7, *requests(b"x"), flags=END_STREAM))
        assert (await client.headers(7, last=True))["grpc-status"] == "0"
        assert served.told == ["reset 8", "half-closed"]


async def test_heads_above_the_limit_end_the_connection() -> None:
    async with serving(Limits(head=1000)) as served:
        async with peer(served.port) as client:
            client.send(client.head(1, x_long="y" * 2000))
            assert await client.ended() == ErrorCode.ENHANCE_YOUR_CALM
        async with peer(served.port) as client:  # 40 bytes and 40 a number
            client.send(client.head(1, x_one="y" * 40), frame(HEADERS, END_HEADERS, 3, b"\xbe" * 300))
            assert await client.ended() == ErrorCode.ENHANCE_YOUR_CALM
        async with peer(served.port) as client:
            client.send(frame(HEADERS, 0, 1, bytes(900)), frame(CONTINUATION, 0, 1, bytes(900)))
            assert await client.ended() == ErrorCode.ENHANCE_YOUR_CALM


async def test_heads_in_frames_without_end_end_the_connection() -> None:
    async with serving() as served, peer(served.port) as client:
        client.send(frame(HEADERS, 0, 1), frame(CONTINUATION, 0, 1) * 64)
        assert await client.ended() == ErrorCode.ENHANCE_YOUR_CALM


FLOODS = {
    "pings": (Limits(idle_frames=RARE), frame(PING, 0, 0, bytes(8))),
    "empty DATA": (Limits(idle_frames=RARE), frame(DATA, 0, 1)),
    "priorities": (Limits(idle_frames=RARE), frame(PRIORITY, 0, 1, bytes(5))),
    "of an unknown kind": (Limits(idle_frames=RARE), frame(77, 0, 1)),
    "resets of what has ended": (Limits(idle_frames=RARE), rst_stream(1, ErrorCode.CANCEL) * 2),
    "settings": (Limits(settings=0.2), settings({}) * 2),
    "resets": (Limits(resets=RARE), rst_stream(1, ErrorCode.CANCEL)),
    "resets that the peer makes us send": (Limits(resets=RARE), window_update(1, 0)),
}


@pytest.mark.parametrize(("limits", "sent"), FLOODS.values(), ids=FLOODS)
async def test_a_flood_ends_the_connection(limits: Limits, sent: bytes) -> None:
    async with serving(limits) as served, peer(served.port) as client:
        client.send(client.call(1, BEGUN), sent)
        assert await client.ended() == ErrorCode.ENHANCE_YOUR_CALM


async def test_resets_after_an_answer_are_no_flood() -> None:
    """Envoy resets each call in some modes, when it has the answer that it wanted."""
    async with serving(Limits(resets=RARE)) as served, peer(served.port) as client:
        for stream in range(1, 41, 2):
            client.send(client.call(stream, *requests(b"x")))
            await client.until(DATA, stream=stream)
            client.send(rst_stream(stream, ErrorCode.INTERNAL_ERROR))
        await eventually(lambda: len(served.told) == 20)
        assert set(served.told) == {"reset 2"}


async def test_settings_of_one_name_count_once_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes through all calls: 2,700 of them through 10,000 calls would be the work of seconds."""
    async with serving() as served, peer(served.port) as client:
        client.send(client.call(1, BEGUN))
        await eventually(lambda: served.server.calls)
        (connection,) = served.server.connections
        credits: list[int] = []
        monkeypatch.setattr(connection._sending, "credit_stream", lambda stream, more: credits.append(more))
        names = b"".join(INITIAL_WINDOW_SIZE.to_bytes(2) + window.to_bytes(4) for window in range(2_700))
        client.send(frame(SETTINGS, 0, 0, names), frame(PING, 0, 0, bytes(8)))
        await client.until(PING)
        assert credits == [2_699 - 65_535]


def test_what_the_page_says_is_so() -> None:
    page = (Path(__file__).parents[3] / "docs" / "envoy.md").read_text().partition("## The connection")[2]
    told = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("|")][2:]
    limits, mb = Limits(), 1 << 20
    assert told == [
        f"{limits.streams:,}",
        f"{limits.message // mb} MB, or twice `listen.max_body`",
        f"{limits.incomplete // mb} MB, or 4 such messages",
        f"{limits.waiting // mb // 1024} GB",
        f"{limits.stall:.0f} s",
        f"{limits.head // 1024} KB, {MAX_PARTS} frames",
        f"{limits.resets:,.0f} a second, {limits.resets * BURST:,.0f} at once",
        f"{limits.settings:.0f} a second, {limits.settings * BURST:.0f} at once",
        f"{limits.idle_frames:,.0f} a second, {limits.idle_frames * BURST:,.0f} at once",
        f"{limits.silence:.0f} s",
        f"{limits.buffer // 1024} KB in our socket",
    ]


def test_a_body_that_is_too_large_for_the_picker_is_not_too_large_for_us() -> None:
    small, large = Limits.for_bodies(1000), Limits.for_bodies(100 << 20)
    assert small == Limits()
    assert (large.message, large.incomplete) == (200 << 20, 800 << 20)


def test_a_rate_allows_a_burst_and_then_so_many_a_second() -> None:
    now = 0.0
    rate = Rate("of these", 2.0, lambda: now)
    for _ in range(20):
        rate.hit()
    with pytest.raises(ConnectionFault, match="too many of these"):
        rate.hit()
    now = 1.0
    rate.hit()  # the one above counts, too
    with pytest.raises(ConnectionFault):
        rate.hit()
    now = 1000.0
    for _ in range(20):
        rate.hit()
    with pytest.raises(ConnectionFault):
        rate.hit()


async def test_messages_that_only_begin_may_not_fill_the_memory() -> None:
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(Limits(incomplete=50_000)))
        clients = [await stack.enter_async_context(peer(served.port)) for _ in range(4)]
        held = served.server._shared.incomplete
        for number, client in enumerate(clients[:3], 1):
            client.send(client.head(1), frame(DATA, 0, 1, BROKEN_OFF))
            await eventually(lambda number=number: held.held == number * len(BROKEN_OFF))
        client = clients[3]
        client.send(client.head(1), frame(DATA, 0, 1, BROKEN_OFF))
        assert (await client.headers(1, last=True))["grpc-status"] == "8"
        assert held.held == 45_000
        clients[0].send(rst_stream(1, ErrorCode.CANCEL))
        client.send(client.call(3, *requests(b"x"), flags=END_STREAM))
        assert (await client.headers(3, last=True))["grpc-status"] == "0"
    assert held.held == 0


async def test_one_connection_may_hold_half_of_what_messages_that_begin_may() -> None:
    async with serving(Limits(incomplete=50_000)) as served, peer(served.port) as client, peer(served.port) as other:
        for stream in (1, 3):
            client.send(client.head(stream), frame(DATA, 0, stream, BROKEN_OFF))
        assert (await client.headers(3, last=True))["grpc-status"] == "8"
        other.send(other.head(1), frame(DATA, 0, 1, BROKEN_OFF))
        await eventually(lambda: served.server._shared.incomplete.held == 30_000)


async def test_a_message_that_does_not_go_on_is_reset() -> None:
    async with serving(Limits(stall=0.05, look=0.02)) as served, peer(served.port) as client:
        client.send(client.call(1, BEGUN), client.head(3), frame(DATA, 0, 3, BROKEN_OFF))
        assert await client.reset(3) == ErrorCode.CANCEL
        assert served.told == ["refused"]
        assert served.server._shared.incomplete.held == 0
        assert served.server.calls == 1, "one that has begun no message waits for ever"


async def test_a_message_that_goes_on_is_waited_for() -> None:
    it = InMemory(Limits(stall=10.0))
    client = Peer(asyncio.StreamReader(), it.pipe)
    it.connection.data_received(PREFACE + settings({}) + client.head(1) + frame(DATA, 0, 1, BROKEN_OFF))
    for now in range(0, 50, 9):
        it.connection.look(now)
        it.connection.data_received(frame(DATA, 0, 1, b"x"))
    it.connection.look(50)
    assert it.told == []
    it.connection.look(61)
    assert it.told == ["refused"]


async def test_answers_that_nobody_takes_may_not_fill_the_memory() -> None:
    async with serving(Limits(waiting=100_000)) as served, peer(served.port) as client:
        client.send(settings({INITIAL_WINDOW_SIZE: 0}))
        client.send(client.call(1, *requests(bytes(60_000))), client.call(3, *requests(bytes(60_000))))
        assert await client.reset(3) == ErrorCode.ENHANCE_YOUR_CALM
        await eventually(lambda: served.told)
        assert served.told == ["refused"]
        client.send(window_update(1, 70_000), window_update(0, 70_000))
        while len(client.data(1)) < 60_000:
            await client.until(DATA, stream=1)
        await eventually(lambda: served.server._shared.waiting.held == 0)


async def test_a_call_that_takes_nothing_is_reset() -> None:
    async with serving(Limits(stall=0.05, look=0.02)) as served, peer(served.port) as client:
        client.send(settings({INITIAL_WINDOW_SIZE: 5}), client.call(1, BEGUN))
        client.send(client.call(3, *requests(b"abc")))
        assert await client.reset(3) == ErrorCode.CANCEL
        assert served.told == ["refused"]
        assert served.server._shared.waiting.held == 0
        assert served.server.calls == 1, "one that has nothing to take waits for ever"


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(Limits(silence=0.05, look=0.02)) as served, peer(served.port) as speaking:
        for said in (b"", PREFACE[:5], PREFACE, PREFACE + settings({})[:4]):
            async with peer(served.port, begin=False) as client:
                client.send(said)
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    while True:
                        await asyncio.wait_for(client.frame(), 30)
        speaking.send(speaking.call(1, *requests(b"x"), flags=END_STREAM))
        assert (await speaking.headers(1, last=True))["grpc-status"] == "0", "one that has begun is older than these"


ROOM = 16_384
"""Bytes that the system holds for one side of a connection, so that a test need not send megabytes."""


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_peer_that_reads_nothing_is_not_read_either() -> None:
    """Or the answers to its pings would pile up."""
    pings = 100_000
    async with serving(Limits(idle_frames=1e9)) as served:
        served.listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        async with peer(served.port, room=ROOM) as client:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            client.send(frame(PING, 0, 0, bytes(8)) * pings)
            await eventually(lambda: any(one._sending.paused for one in served.server.connections))
            (connection,) = served.server.connections
            transport = connection._transport
            assert transport is not None
            assert not transport.is_reading(), "nothing more comes that would be answered"
            assert transport.get_write_buffer_size() < Limits().buffer * 3
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            left = 17 * pings
            while left > 0:
                left -= len(await asyncio.wait_for(client.reader.read(1 << 20), 30))


async def test_a_peer_that_takes_everything_and_reads_nothing_waits_in_our_queue() -> None:
    """Its windows are wide open; what the socket does not take stays where it is counted."""
    async with serving() as served:
        served.listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        async with peer(served.port, room=ROOM) as client:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            client.send(settings({INITIAL_WINDOW_SIZE: 1 << 30}), window_update(0, 1 << 30))
            client.send(client.call(1, *requests(bytes(900_000))))
            await eventually(lambda: any(one._sending.paused for one in served.server.connections))
            (connection,) = served.server.connections
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() < Limits().buffer * 2
            assert served.server._shared.waiting.held > 300_000
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            while len(client.data(1)) < 900_000:
                await client.until(DATA)


async def test_a_handler_sees_what_waits() -> None:
    streams: list[Stream] = []

    def opened(stream: Stream) -> Echo:
        streams.append(stream)
        return Echo(stream, [])

    async with serving(open_call=opened) as served, peer(served.port) as client:
        client.send(settings({INITIAL_WINDOW_SIZE: 100}), client.call(1, *requests(bytes(1000))))
        await client.until(DATA)
        waiting = streams[0].waiting
        assert 900 < waiting < 1000
        client.send(window_update(1, 50))
        await client.until(DATA)
        assert streams[0].waiting == waiting - 50
