"""The frames of HTTP/2 (RFC 9113, section 6), and what ends a connection or a stream that breaks its rules."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = 9
"""Bytes before a frame's payload."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

ACK = END_STREAM = 1
END_HEADERS, PADDED, HAS_PRIORITY = 4, 8, 32

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST = range(
    1, 7
)

WINDOW = 65_535
"""A window before anything is said of it."""

LARGEST_WINDOW = LAST_STREAM = 0x7FFF_FFFF
SMALLEST_FRAME, LARGEST_FRAME = 16_384, 0xFF_FFFF
"""Between these is the longest payload that an endpoint may say it takes; the first is meant if it says nothing."""


class ErrorCode(IntEnum):
    """Of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The peer broke a rule or a limit; the connection ends with GOAWAY."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The same of one stream, which ends with RST_STREAM."""

    def __init__(self, number: int, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.number = number
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *each) for each in values.items()))


def window_update(stream: int, more: int) -> bytes:
    return struct.pack(">IBII", 4 << 8 | WINDOW_UPDATE, 0, stream, more)


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    return struct.pack(">IBII", 4 << 8 | RST_STREAM, 0, stream, code)


def goaway(last: int, code: ErrorCode, text: str = "") -> bytes:
    """``last``: the last stream of the peer's that is, or may still be, answered."""
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + text.encode()[:256])


SHAPES = {
    DATA: ("DATA", True, 0, LARGEST_FRAME),
    HEADERS: ("HEADERS", True, 0, LARGEST_FRAME),
    PRIORITY: ("PRIORITY", True, 5, 5),
    RST_STREAM: ("RST_STREAM", True, 4, 4),
    SETTINGS: ("SETTINGS", False, 0, LARGEST_FRAME),
    PING: ("PING", False, 8, 8),
    GOAWAY: ("GOAWAY", False, 8, LARGEST_FRAME),
    WINDOW_UPDATE: ("WINDOW_UPDATE", None, 4, 4),
}
"""Name, whether it is of a stream or of the connection (None: of either), least and most bytes."""


def check_shape(kind: int, number: int, size: int) -> None:
    """Raises ConnectionFault where a frame cannot be of stream ``number``, or of ``size`` bytes."""
    if (shape := SHAPES.get(kind)) is not None:
        name, of_stream, least, most = shape
        if of_stream is not None and of_stream != bool(number):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{name} of stream {number}")
        if not least <= size <= most:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {size} bytes")


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of DATA or HEADERS without its padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def settings_in(payload: bytes) -> list[tuple[int, int]]:
    """(name, value) of a SETTINGS frame, in their order. Raises ConnectionFault for values that must not be."""
    if len(payload) % 6:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS with a broken length")
    found = list(struct.iter_unpack(">HI", payload))
    for name, value in found:
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        if name == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if name == MAX_FRAME_SIZE and not SMALLEST_FRAME <= value <= LARGEST_FRAME:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
    return found
