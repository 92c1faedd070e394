"""Covers: gateway/epp/transport/frame_reader.py.

How the bytes are cut makes no difference; and nothing that a peer can send is more than the end of its connection."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from gateway.epp.messages import HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest
from gateway.epp.transport.frames import (
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PREFACE,
    PRIORITY,
    ErrorCode,
    frame,
    rst_stream,
    settings,
    window_update,
)
from gateway.epp.transport.limits import Limits
from tests.support.http2 import HEADS, InMemory, prefixed, requests

SMALL = Limits(message=5_000, head=2_000, incomplete=20_000, waiting=30_000, streams=4, stream_window=20_000)
WIDE = Limits(message=5_000)


def heads(*changed: tuple[str, str], encoder: Encoder | None = None) -> bytes:
    made: bytes = (encoder or Encoder()).encode([*HEADS.items(), *changed])
    return made


async def pieces(limits: Limits, parts: list[bytes]) -> InMemory:
    served = InMemory(limits)
    for part in parts:
        served.connection.data_received(part)
    return served


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(place % (len(raw) + 1) for place in places)})
    return [raw[begin:end] for begin, end in itertools.pairwise(edges)]


def session() -> bytes:
    """A connection as a gateway's, with calls beside each other, ends of all kinds, and faults of calls. What is
    answered to it does not depend on when it is sent: no call is reset that has an answer."""
    encoder = Encoder()

    def opened(number: int, *changed: tuple[str, str]) -> bytes:
        return frame(HEADERS, END_HEADERS, number, heads(*changed, encoder=encoder))

    def said(number: int, *messages: ProcessingRequest, last: bool = False) -> bytes:
        return frame(DATA, int(last), number, b"".join(map(prefixed, messages)))

    def long() -> bytes:
        return heads(("x-long", "y" * 300), encoder=encoder)

    return b"".join(
        [
            *(PREFACE, settings({4: 65_536, 5: 16_384}), window_update(0, 1 << 20)),
            *(opened(1), opened(3), said(1, *requests(b"a" * 700, 300)[:2])),
            *(said(3, *requests(b"b" * 900)), frame(6, 0, 0, b"12345678"), said(1, *requests(b"a" * 700, 300)[2:])),
            *(said(1, ProcessingRequest(response_headers=HttpHeaders())), said(3, last=True)),
            *(said(1, last=True), frame(HEADERS, 0, 5, (block := long())[:7]), frame(9, 0, 5, block[7:90])),
            *(frame(9, END_HEADERS, 5, block[90:]), said(5, *requests(b"c")), opened(7), window_update(7, 0)),
            *(opened(9, (":path", "twice")), opened(11), frame(DATA, 1, 11, b"\1\0\0\0\0")),
            *(
                frame(PRIORITY, 0, 99, bytes(5)),
                settings({4: 0x10000}),
                opened(13),
                said(13, *requests(b"d"), last=True),
            ),
            *(opened(15), said(15, *requests(b"e")[:1]), rst_stream(15, ErrorCode.INTERNAL_ERROR)),
            *(window_update(5, 1000), said(5, ProcessingRequest(request_body=HttpBody(body=bytes(6000))))),
            frame(GOAWAY, 0, 0, bytes(8)),
        ]
    )


SESSION = session()


@given(st.lists(st.integers(0, len(SESSION)), max_size=60))
async def test_how_a_session_is_cut_makes_no_difference(places: list[int]) -> None:
    whole = await pieces(WIDE, [SESSION])
    parts = await pieces(WIDE, cut(SESSION, places))
    assert parts.meaning() == whole.meaning()
    assert parts.shared.incomplete.held == parts.shared.waiting.held == 0


async def test_a_session_byte_by_byte() -> None:
    whole = await pieces(WIDE, [SESSION])
    parts = await pieces(WIDE, [bytes([byte]) for byte in SESSION])
    assert parts.meaning() == whole.meaning()
    streams, _, told, closed = whole.meaning()
    assert not closed
    assert told == [*["half-closed"] * 2, *["refused"] * 2, "half-closed", "reset 2", "refused"]
    assert streams[9] == [ErrorCode.PROTOCOL_ERROR]


MESSAGES = st.sampled_from(
    [
        *requests(b"abc" * 100, 100),
        ProcessingRequest(response_headers=HttpHeaders()),
        ProcessingRequest(request_trailers=HttpTrailers()),
        ProcessingRequest(response_body=HttpBody(end_of_stream=True)),
    ]
)
NUMBERS = st.sampled_from([0, 1, 1, 3, 3, 5, 5, 7, 9, 11, 2, 0x7FFFFFFF])
FLAGS = st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 32, 36, 37, 44, 45, 255])
WORDS = st.sampled_from([0, 1, 10, 1000, 65_535, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF])
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda word: word.to_bytes(4), WORDS),
    st.builds(lambda name, word: name.to_bytes(2) + word.to_bytes(4), st.integers(1, 8), WORDS),
    st.builds(prefixed, MESSAGES),
    st.builds(lambda message, at: prefixed(message)[:at], MESSAGES, st.integers(0, 90)),
    st.just(heads()),
    st.just(bytes(8)),
)
KINDS = st.one_of(st.sampled_from([0, 0, 0, 1, 1, 8, 3, 4]), st.integers(0, 12))
FRAMES = st.one_of(
    st.builds(frame, KINDS, FLAGS, NUMBERS, PAYLOADS),
    st.builds(lambda number: frame(HEADERS, END_HEADERS, number, heads()), NUMBERS),
    st.builds(
        lambda number, flags, message: frame(DATA, flags & 1, number, prefixed(message)), NUMBERS, FLAGS, MESSAGES
    ),
    st.builds(window_update, NUMBERS, WORDS),
    st.builds(rst_stream, NUMBERS, st.sampled_from(ErrorCode)),
    st.builds(lambda word: settings({4: word}), WORDS),
)


@given(st.lists(FRAMES, max_size=40), st.lists(st.integers(0, 10_000), max_size=10))
async def test_frames_in_any_order(sent: list[bytes], places: list[int]) -> None:
    await survives(PREFACE + settings({}) + b"".join(sent), places)


@given(st.binary(max_size=300), st.booleans(), st.lists(st.integers(0, 400), max_size=10))
async def test_bytes_of_any_kind(sent: bytes, begun: bool, places: list[int]) -> None:
    await survives((PREFACE + settings({}) if begun else b"") + sent, places)


@given(st.integers(0, len(SESSION) - 1), st.integers(0, 255), st.lists(st.integers(0, len(SESSION)), max_size=5))
async def test_a_session_with_a_wrong_byte(at: int, byte: int, places: list[int]) -> None:
    await survives(SESSION[:at] + bytes([byte]) + SESSION[at + 1 :], places)


async def survives(raw: bytes, places: list[int]) -> None:
    """No exception, no failed call, and nothing is held that may not be; all is given back when the connection ends."""
    errors: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = errors.append  # type: ignore[method-assign]
    log = logging.getLogger("kvgate.epp")
    log.addHandler(handler)
    try:
        served = await pieces(SMALL, cut(raw, places))
        connection, shared = served.connection, served.shared
        assert shared.incomplete.held <= SMALL.incomplete + 16_384
        assert shared.waiting.held <= SMALL.waiting
        assert len(connection.calls) <= SMALL.streams
        assert served.frames() or served.pipe.closed
        await asyncio.sleep(0)
        connection.connection_lost(None)
        assert not connection.calls
        assert shared.incomplete.held == shared.waiting.held == 0
    finally:
        log.removeHandler(handler)
    assert [record.getMessage() for record in errors] == []


async def test_what_comes_after_a_fault_is_dropped() -> None:
    served = await pieces(SMALL, [PREFACE, settings({}), frame(DATA, 0, 0), SESSION, b"x" * 100_000])
    assert [one.kind for one in served.frames()][-1] == GOAWAY
    assert served.pipe.closed


@pytest.mark.parametrize("size", [0, 1, 4, 5, 6, 9, 100])
async def test_a_message_over_frames_of_any_size(size: int) -> None:
    """Also of its five bytes before it."""
    raw = b"".join(map(prefixed, requests(b"abcdefgh" * 20, 50)))
    whole = await pieces(
        SMALL, [PREFACE, settings({}), frame(HEADERS, END_HEADERS, 1, heads()), frame(DATA, 1, 1, raw)]
    )
    parts = [raw[at : at + size] for at in range(0, len(raw), size)] if size else [raw, b""]
    sent = [frame(DATA, int(number == len(parts)), 1, part) for number, part in enumerate(parts, 1)]
    cut_up = await pieces(SMALL, [PREFACE, settings({}), frame(HEADERS, END_HEADERS, 1, heads()), *sent])
    assert cut_up.meaning() == whole.meaning()
