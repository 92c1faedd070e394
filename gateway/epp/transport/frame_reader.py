"""What comes of a connection, cut into frames: the preface, sizes, and headers that go on in several frames."""

from __future__ import annotations

from collections.abc import Callable

from gateway.epp.transport.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    HAS_PRIORITY,
    HEAD,
    HEADERS,
    LAST_STREAM,
    PREFACE,
    SETTINGS,
    SMALLEST_FRAME,
    ConnectionFault,
    ErrorCode,
    check_shape,
    unpadded,
)

MAX_PARTS = 64
"""Frames of one call's headers: empty ones would be a flood that no limit of bytes ends."""

OnFrame = Callable[[int, int, int, bytes], None]
"""Kind, flags, stream and payload. HEADERS come once for all their frames, with the flags of the first, without padding
and priority."""


class FrameReader:
    """``begun``: the preface and the first SETTINGS have come. How the bytes are cut makes no difference."""

    def __init__(self, on_frame: OnFrame, largest_head: int) -> None:
        """``largest_head``: bytes of a call's headers, as they come."""
        self.begun = False
        self._on_frame = on_frame
        self._largest_head = largest_head
        self._prefaced = False
        self._rest = b""
        # Of headers that are not complete
        self._expected = 0  # their stream; 0: there are none
        self._flags = 0
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Raises ConnectionFault, and what ``on_frame`` raises; not to be called after that."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self._prefaced:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "it does not speak HTTP/2")
            if end >= len(PREFACE):
                self._prefaced, at = True, len(PREFACE)
        while self._prefaced and end - at >= HEAD:
            size, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
            if size > SMALLEST_FRAME:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if not self.begun:
                if kind != SETTINGS or flags & ACK:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
                self.begun = end - at - HEAD >= size
            if end - at - HEAD < size:
                break
            number = int.from_bytes(data[at + 5 : at + HEAD]) & LAST_STREAM
            begin, at = at + HEAD, at + HEAD + size
            payload = data[begin:at]
            check_shape(kind, number, size)
            if kind in (HEADERS, CONTINUATION) or self._expected:
                self._headers(kind, flags, number, payload)
            else:
                self._on_frame(kind, flags, number, payload)
        self._rest = data[at:]

    def _headers(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if (kind == CONTINUATION) != bool(self._expected) or (self._expected and number != self._expected):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "headers and other frames in each other")
        if kind == HEADERS:
            payload = unpadded(flags, payload)
            if flags & HAS_PRIORITY:
                if len(payload) < 5:
                    raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for their priority")
                payload = payload[5:]
            if flags & END_HEADERS:
                self._check(len(payload))
                self._on_frame(HEADERS, flags, number, payload)
                return
            self._expected, self._flags, self._parts = number, flags, []
        self._parts.append(payload)
        if len(self._parts) > MAX_PARTS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers in too many frames")
        self._check(sum(map(len, self._parts)))
        if flags & END_HEADERS:
            block, self._parts, self._expected = b"".join(self._parts), [], 0
            self._on_frame(HEADERS, self._flags, number, block)

    def _check(self, size: int) -> None:
        if size > self._largest_head:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"headers of {size} bytes")
