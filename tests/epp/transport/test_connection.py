"""Covers: gateway/epp/transport/connection.py, gateway/epp/transport/frames.py, gateway/epp/transport/heads.py.

The rules of RFC 9113, frame by frame: what a peer gets that breaks one, and what of its frames is ignored."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator

import pytest

from gateway.epp.messages import HttpBody, HttpHeaders, ProcessingRequest
from gateway.epp.transport import frames
from gateway.epp.transport.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    goaway,
    rst_stream,
    settings,
    window_update,
)
from gateway.epp.transport.limits import Limits
from gateway.epp.transport.server import PROCESS
from tests.support.http2 import Peer, Served, peer, prefixed, requests, serving
from tests.support.wait import eventually

BEGUN = ProcessingRequest(request_headers=HttpHeaders())
LAST = END_HEADERS | END_STREAM


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as made:
        yield made


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Peer]:
    async with peer(served.port) as made:
        yield made


async def works(client: Peer, stream: int) -> None:
    """Whether a call on this connection still gets its answer."""
    client.send(client.call(stream, *requests(b"still"), flags=END_STREAM))
    assert (await client.headers(stream, last=False))[":status"] == "200"
    assert (await client.headers(stream, last=True))["grpc-status"] == "0"
    assert b"still" in client.data(stream)


# Of the connection


async def test_the_settings_come_first_and_are_acknowledged(client: Peer) -> None:
    first = await client.frame()
    assert first.kind == SETTINGS
    assert dict(struct.iter_unpack(">HI", first.payload)) == {3: 10_000, 4: 1 << 20, 6: 32_768}
    assert (await client.frame()).kind == WINDOW_UPDATE
    assert ((one := await client.frame()).kind, one.flags) == (SETTINGS, ACK)


async def test_a_ping_is_answered_with_its_bytes(client: Peer) -> None:
    client.send(frame(PING, ACK, 0, b"ourstous"), frame(PING, 0, 0, b"12345678"))
    one = await client.until(PING)
    assert (one.flags, one.payload) == (ACK, b"12345678")


BROKEN = {
    "no HTTP/2": (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "no settings": (PREFACE + frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "only an acknowledgement": (PREFACE + frame(SETTINGS, ACK, 0), ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
async def test_what_does_not_begin_as_http2_is_disconnected(served: Served, sent: bytes, code: ErrorCode) -> None:
    async with peer(served.port, begin=False) as client:
        client.send(sent)
        assert await client.ended() == code
    await eventually(lambda: not served.server.connections)


HEAD = b"\x83\x86\x44\x01/"  # POST, http, a path

FAULTS = {
    "DATA of no stream": (frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA of a stream that is not open": (frame(DATA, 0, 7, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA of a stream of ours": (frame(DATA, 0, 2, b"x"), ErrorCode.PROTOCOL_ERROR),
    "HEADERS of no stream": (frame(HEADERS, LAST, 0, HEAD), ErrorCode.PROTOCOL_ERROR),
    "HEADERS of a stream of ours": (frame(HEADERS, LAST, 2, HEAD), ErrorCode.PROTOCOL_ERROR),
    "a number used again": (
        frame(HEADERS, LAST, 3, HEAD) + frame(HEADERS, LAST, 1, HEAD),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "HEADERS that are no HPACK": (frame(HEADERS, LAST, 1, b"\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    "HEADERS that enlarge the table": (frame(HEADERS, LAST, 1, b"\x3f\xe2\x1f" + HEAD), ErrorCode.COMPRESSION_ERROR),
    "HEADERS too short for a priority": (frame(HEADERS, LAST | 32, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    "HEADERS that are all padding": (frame(HEADERS, LAST | PADDED, 1, b"\5abc"), ErrorCode.PROTOCOL_ERROR),
    "padding of nothing": (frame(HEADERS, LAST | PADDED, 1), ErrorCode.PROTOCOL_ERROR),
    "a frame within HEADERS": (
        frame(HEADERS, 0, 1, HEAD) + frame(PING, 0, 0, bytes(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "an unknown frame within HEADERS": (frame(HEADERS, 0, 1, HEAD) + frame(99, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "CONTINUATION of another stream": (
        frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, END_HEADERS, 3),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1, HEAD), ErrorCode.PROTOCOL_ERROR),
    "PRIORITY of no stream": (frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "PRIORITY of 4 bytes": (frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    "RST_STREAM of no stream": (rst_stream(0, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM of a stream that is not open": (rst_stream(1, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM of 3 bytes": (frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS of a stream": (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS that acknowledge and set": (frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    "ENABLE_PUSH 2": (settings({frames.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
    "a window too large": (settings({INITIAL_WINDOW_SIZE: LARGEST_WINDOW + 1}), ErrorCode.FLOW_CONTROL_ERROR),
    "a frame size too small": (settings({MAX_FRAME_SIZE: 16_383}), ErrorCode.PROTOCOL_ERROR),
    "a frame size too large": (settings({MAX_FRAME_SIZE: 1 << 24}), ErrorCode.PROTOCOL_ERROR),
    "PUSH_PROMISE": (frame(frames.PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "PING of a stream": (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "PING of 7 bytes": (frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "GOAWAY of a stream": (frame(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (frame(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 3 bytes": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of nothing": (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE of a stream that is not open": (window_update(1, 1), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond all windows": (window_update(0, LARGEST_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
    "a frame that is too long": (frame(DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), FAULTS.values(), ids=FAULTS)
async def test_a_fault_of_the_connection_ends_it(client: Peer, served: Served, sent: bytes, code: ErrorCode) -> None:
    client.send(sent)
    assert await client.ended() == code
    client.writer.close()
    await eventually(lambda: not served.server.connections)


async def test_a_fault_tells_the_calls_that_were_open(client: Peer, served: Served) -> None:
    client.send(client.call(1, BEGUN), client.call(3, BEGUN), frame(PING, 0, 0))
    assert await client.ended() == ErrorCode.FRAME_SIZE_ERROR
    assert served.told == ["refused", "refused"]


async def test_after_a_fault_nothing_is_written_any_more(client: Peer, served: Served) -> None:
    client.send(frame(PING, 0, 0))
    assert (await client.until(GOAWAY)).code == ErrorCode.FRAME_SIZE_ERROR
    (connection,) = served.server.connections
    await served.server.drain(0.0)  # asks the peer to leave
    connection._sending.flush()
    assert await client.reader.read() == b""


async def test_a_peer_that_is_gone_is_noticed_by_the_system_within_a_minute(client: Peer, served: Served) -> None:
    await eventually(lambda: served.server.connections)
    (connection,) = served.server.connections
    assert connection._transport is not None
    its = connection._transport.get_extra_info("socket")
    probes = its.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * 3
    assert its.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + probes == 60
    assert its.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000, "where it has not acknowledged"


async def test_what_nobody_knows_or_needs_is_ignored(client: Peer) -> None:
    client.send(
        frame(99, 255, 5, b"of a later version"),
        frame(PRIORITY, 0, 9, bytes(5)),
        settings({99: 5, frames.HEADER_TABLE_SIZE: 0, frames.MAX_CONCURRENT_STREAMS: 0}),
        goaway(0, ErrorCode.NO_ERROR),
    )
    await works(client, 1)


# Of a stream


async def test_a_call_that_is_refused_leaves_the_others(client: Peer, served: Served) -> None:
    client.send(client.call(1, BEGUN), window_update(1, LARGEST_WINDOW))
    assert await client.reset(1) == ErrorCode.FLOW_CONTROL_ERROR
    assert served.told == ["refused"]
    await works(client, 3)


async def test_a_window_update_of_nothing_resets_its_stream(client: Peer) -> None:
    client.send(client.call(1, BEGUN), window_update(1, 0))
    assert await client.reset(1) == ErrorCode.PROTOCOL_ERROR
    await works(client, 3)


async def test_data_after_the_end_resets_its_stream(client: Peer) -> None:
    """The call waits for our windows, or it would be over."""
    client.send(settings({INITIAL_WINDOW_SIZE: 0}), client.call(1, *requests(b"a"), flags=END_STREAM))
    client.send(frame(DATA, 0, 1, b"more"))
    assert await client.reset(1) == ErrorCode.STREAM_CLOSED
    client.send(settings({INITIAL_WINDOW_SIZE: 65_535}))
    await works(client, 3)


async def test_trailers_end_a_request(client: Peer, served: Served) -> None:
    client.send(client.call(1, BEGUN), frame(HEADERS, LAST, 1, client.encoder.encode([("a", "b")])))
    assert (await client.headers(1, last=True))["grpc-status"] == "0"
    assert served.told == ["half-closed"]


@pytest.mark.parametrize(
    ("flags", "heads"), [(END_HEADERS, [("a", "b")]), (LAST, [(":path", "/")]), (LAST, [("A", "b")])]
)
async def test_malformed_trailers_reset_their_stream(client: Peer, flags: int, heads: list[tuple[str, str]]) -> None:
    client.send(client.call(1, BEGUN), frame(HEADERS, flags, 1, client.encoder.encode(heads)))
    assert await client.reset(1) == ErrorCode.PROTOCOL_ERROR
    await works(client, 3)


MALFORMED = {
    "no method": {"_method": None},
    "no scheme": {"_scheme": None},
    "no path": {"_path": None},
    "an empty path": {"_path": ""},
    "a pseudo-header of an answer": {"_status": "200"},
    "upper case": {"X-A": "b"},
    "of HTTP/1.1": {"connection": "close"},
    "te": {"te": "gzip"},
}


@pytest.mark.parametrize("changed", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_headers_reset_their_stream(client: Peer, changed: dict[str, str | None]) -> None:
    client.send(client.head(1, **changed))
    assert await client.reset(1) == ErrorCode.PROTOCOL_ERROR
    await works(client, 3)


@pytest.mark.parametrize("heads", [[("a", "b"), (":path", "/")], [(":path", "/"), (":path", "/")]])
async def test_pseudo_headers_come_once_and_first(client: Peer, heads: list[tuple[str, str]]) -> None:
    block = client.encoder.encode([(":method", "POST"), (":scheme", "http"), *heads])
    client.send(frame(HEADERS, END_HEADERS, 1, block))
    assert await client.reset(1) == ErrorCode.PROTOCOL_ERROR


async def test_what_comes_of_a_call_that_has_ended_is_ignored(client: Peer, served: Served) -> None:
    client.send(client.call(1, BEGUN), rst_stream(1, ErrorCode.INTERNAL_ERROR))
    client.send(frame(DATA, 0, 1, b"late"), window_update(1, 5), rst_stream(1, ErrorCode.CANCEL))
    client.send(frame(HEADERS, LAST, 1, client.encoder.encode([("late", "trailers")])))
    await works(client, 3)
    assert served.told == ["reset 2", "half-closed"]


async def test_a_call_that_ends_first_asks_the_client_to_stop(client: Peer) -> None:
    client.send(client.call(1, ProcessingRequest(), flags=0), frame(DATA, 0, 1, b"\1\0\0\0\0"))
    heads = await client.headers(1, last=True)
    assert (heads[":status"], heads["grpc-status"]) == ("200", "12")
    assert await client.reset(1) == ErrorCode.NO_ERROR
    client.send(frame(DATA, END_STREAM, 1, b"it had not heard yet"))
    await works(client, 3)


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({"_method": "GET"}, {":status": "405"}),
        ({"content_type": "text/html"}, {":status": "415"}),
        ({"_path": "/a/B"}, {"grpc-status": "12"}),
        ({"grpc_timeout": "1n", "content_type": "application/grpc+proto"}, {"grpc-status": "0"}),
    ],
)
async def test_what_is_no_call_of_ours(client: Peer, changed: dict[str, str | None], answer: dict[str, str]) -> None:
    client.send(client.head(1, LAST, **changed))
    assert (await client.headers(1, last=True)).items() >= answer.items()
    await works(client, 3)


async def test_a_message_that_breaks_off_ends_its_call(client: Peer, served: Served) -> None:
    client.send(client.head(1), frame(DATA, END_STREAM, 1, b"\0\0\0\0\5abc"))
    assert (await client.headers(1, last=True))["grpc-status"] == "13"
    assert served.told == ["refused"]


async def test_padding_and_priority_are_no_part_of_a_message(client: Peer) -> None:
    block = client.head(1)[9:]
    client.send(frame(HEADERS, END_HEADERS | PADDED | 32, 1, b"\3" + bytes(5) + block + b"\0\0\0"))
    data = b"".join(map(prefixed, requests(b"abc")))
    client.send(frame(DATA, PADDED | END_STREAM, 1, b"\2" + data + b"\0\0"))
    assert (await client.headers(1))[":status"] == "200"
    assert (await client.headers(1, last=True))["grpc-status"] == "0"
    assert b"abc" in client.data(1)


async def test_headers_in_several_frames(client: Peer) -> None:
    block = client.head(1, x_large="y" * 20_000)[9:]
    client.send(
        frame(HEADERS, END_STREAM, 1, block[:100]),
        frame(CONTINUATION, 0, 1, block[100:10_000]),
        frame(CONTINUATION, 0, 1),
        frame(CONTINUATION, END_HEADERS, 1, block[10_000:]),
    )
    assert (await client.headers(1, last=True))["grpc-status"] == "0"
    await works(client, 3)


async def test_headers_that_refer_to_others_before(client: Peer) -> None:
    """As Envoy sends them: most of a second call's are numbers of the table."""
    first, second = client.head(1, x_name="value"), client.head(3, x_name="value")
    assert len(second) < len(first) / 2
    client.send(first, second)
    await works(client, 5)


# Windows


async def test_an_answer_waits_for_the_windows(client: Peer, served: Served) -> None:
    client.send(settings({INITIAL_WINDOW_SIZE: 10}), client.call(1, *requests(bytes(1000)), flags=END_STREAM))
    await client.until(DATA)
    assert len(client.data(1)) == 10
    client.send(window_update(1, 5))
    await client.until(DATA)
    assert len(client.data(1)) == 15
    client.send(settings({INITIAL_WINDOW_SIZE: 20}))  # of open streams, too
    await client.until(DATA)
    assert len(client.data(1)) == 25
    client.send(settings({INITIAL_WINDOW_SIZE: 0}), window_update(1, 19))  # the window is below 0: 20 less, 19 more
    client.send(frame(PING, 0, 0, bytes(8)))
    await client.until(PING)
    assert len(client.data(1)) == 25
    client.send(window_update(1, 5000))
    assert (await client.headers(1, last=True))["grpc-status"] == "0"
    assert served.told == ["half-closed"]


async def test_an_answer_waits_for_the_connections_window_and_others_need_none(client: Peer) -> None:
    client.send(settings({INITIAL_WINDOW_SIZE: 1 << 20}))
    client.send(*(client.call(number, *requests(bytes(40_000)), flags=END_STREAM) for number in (1, 3, 5)))
    while sum(len(client.data(number)) for number in (1, 3, 5)) < 65_535:
        await client.until(DATA)
    client.send(client.head(7, LAST))  # its answer has no DATA
    assert (await client.headers(7, last=True))["grpc-status"] == "0"
    client.send(window_update(0, 1 << 20))
    while any(client.data(number)[-2:] != b"\x10\x01" for number in (1, 3, 5)):  # end_of_stream
        await client.until(DATA)


async def test_streams_take_turns(client: Peer) -> None:
    client.send(settings({INITIAL_WINDOW_SIZE: 1 << 20}))
    client.send(*(client.call(number, *requests(bytes(100_000)), flags=END_STREAM) for number in (1, 3)))
    client.send(window_update(0, 1 << 20))
    await client.headers(3, last=True)
    order = [one.stream for one in client.seen if one.kind == DATA]
    assert order.index(3) < len(order) - 1 - order[::-1].index(1), "the first went wholly before the second"


async def test_frames_are_as_long_as_the_peer_takes_them(client: Peer) -> None:
    client.send(settings({MAX_FRAME_SIZE: 60_000}), client.call(1, *requests(bytes(50_000)), flags=END_STREAM))
    await client.headers(1, last=True)
    assert max(len(one.payload) for one in client.seen if one.kind == DATA) > 50_000
    client.send(settings({MAX_FRAME_SIZE: 16_384}), client.call(3, *requests(bytes(10_000)), flags=END_STREAM))
    await client.headers(3, last=True)
    assert max(len(one.payload) for one in client.seen if one.kind == DATA and one.stream == 3) <= 16_384


async def test_our_windows_are_refilled_as_they_are_used(client: Peer) -> None:
    client.send(settings({INITIAL_WINDOW_SIZE: 1 << 24}), window_update(0, 1 << 24))
    body = bytes(3 << 20)
    sent, window, raw = 0, 65_535, b"".join(map(prefixed, requests(body)))
    client.send(client.head(1))
    while sent < len(raw):
        size = min(16_384, window, len(raw) - sent)
        client.send(frame(DATA, END_STREAM if sent + size == len(raw) else 0, 1, raw[sent : sent + size]))
        sent, window = sent + size, window - size
        while window < 16_384:
            one = await client.frame()
            if one.kind == SETTINGS and not one.flags:
                window += (1 << 20) - 65_535
            elif one.kind == WINDOW_UPDATE and one.stream == 1:
                window += int.from_bytes(one.payload)
    assert (await client.headers(1, last=True))["grpc-status"] == "0"
    assert len(client.data(1)) > len(body)


async def test_more_than_a_streams_window_resets_it() -> None:
    async with serving(Limits(stream_window=20_000)) as served, peer(served.port) as client:
        part = prefixed(ProcessingRequest(request_body=HttpBody(body=bytes(15_000))))
        client.send(client.head(1), frame(DATA, 0, 1, part[:9_000]), frame(DATA, 0, 1, part[9_000:]))
        assert (await client.until(WINDOW_UPDATE, stream=1)).payload == len(part).to_bytes(4)
        client.send(client.head(3), frame(DATA, 0, 3, bytes(9_000)), frame(DATA, 0, 3, bytes(16_000)))
        assert await client.reset(3) == ErrorCode.FLOW_CONTROL_ERROR


async def test_more_than_the_connections_window_ends_it() -> None:
    """A window is refilled when half of it is used; so what comes at once must be more than that."""
    async with serving(Limits(connection_window=65_535 + 1, stream_window=1 << 20)) as served:
        connection = served.server.server()
        connection._window = 100  # as if the rest were on its way
        connection.connection_made(Pipe())
        connection.data_received(PREFACE + settings({}) + frame(HEADERS, END_HEADERS, 1, HEAD))
        connection.data_received(frame(DATA, 0, 1, bytes(101)))
        assert connection._over
        connection.connection_lost(None)


class Pipe:
    """A transport that takes everything."""

    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None


def test_the_path_is_envoys() -> None:
    assert PROCESS == "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
