"""What a connection has to send: frames of all its streams in turns, within the peer's windows.

What is put here within one call of the event loop is written together, in as few frames and system calls as can be.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable

from gateway.epp.transport.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_WINDOW,
    SMALLEST_FRAME,
    WINDOW,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    frame,
)
from gateway.epp.transport.limits import Tally

BATCH = 65_536
"""Bytes that are written at once, between two looks whether the peer still takes them."""


class Outgoing:
    """Of one stream. ``window``: bytes that the peer takes of it. ``waiting``: bytes that are not sent yet. ``taken``:
    bytes that were, by which a peer that takes nothing is known."""

    __slots__ = ("in_turn", "number", "parts", "tail", "taken", "waiting", "window")

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.window = window
        self.waiting = 0
        self.taken = 0
        self.parts: deque[memoryview] = deque()
        self.tail: bytes | None = None
        self.in_turn = False


class Sending:
    """``window``: bytes that the peer takes of all streams. ``initial_window``: of a new one. ``reading``: whoever set
    it flushes in the end. ``paused``: the socket takes nothing."""

    def __init__(self, tally: Tally, finished: Callable[[int], bytes]) -> None:
        """``finished``: called with a stream's number when its END_STREAM is written; gives what follows it."""
        self.window = WINDOW
        self.initial_window = WINDOW
        self.largest_frame = SMALLEST_FRAME
        self.reading = False
        self.paused = False
        self._tally = tally
        self._finished = finished
        self._out: list[bytes | memoryview] = []
        self._turns: deque[Outgoing] = deque()
        self._blocked: list[Outgoing] = []  # by the connection's window
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._transport: asyncio.Transport | None = None

    def start(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def stop(self) -> None:
        """Write nothing any more."""
        self._transport = None
        self._out.clear()

    # What is sent

    def control(self, raw: bytes) -> None:
        """Frames that no window is for. They come before the DATA that is put in the same call."""
        self._out.append(raw)
        self._soon()

    def room_for(self, size: int) -> bool:
        return self._tally.held + size <= self._tally.limit

    def data(self, stream: Outgoing, data: bytes) -> None:
        stream.parts.append(memoryview(data))
        stream.waiting += len(data)
        self._tally.held += len(data)
        self._turn(stream)

    def end(self, stream: Outgoing, block: bytes) -> None:
        """``block``: the headers that end the stream, after its data."""
        stream.tail = block
        self._turn(stream)

    def drop(self, stream: Outgoing) -> None:
        """Send nothing more of it."""
        self._tally.held -= stream.waiting
        stream.waiting = 0
        stream.parts.clear()
        stream.tail = None

    def _turn(self, stream: Outgoing) -> None:
        if not stream.in_turn:
            stream.in_turn = True
            self._turns.append(stream)
        self._soon()

    def _soon(self) -> None:
        if not self.reading and not self._scheduled:  # whoever reads flushes in the end
            self._scheduled = True
            self._loop.call_soon(self._flush_late)

    def _flush_late(self) -> None:
        self._scheduled = False
        self.flush()

    # The peer's windows

    def credit(self, more: int) -> None:
        """Of the connection. Raises ConnectionFault."""
        self.window += more
        if self.window > LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
        if self._blocked:
            self._turns.extend(self._blocked)
            self._blocked.clear()
            self._soon()

    def credit_stream(self, stream: Outgoing, more: int) -> None:
        """Raises StreamFault. ``more`` is below 0 where the initial window has become smaller."""
        stream.window += more
        if stream.window > LARGEST_WINDOW:
            raise StreamFault(stream.number, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is too large")
        if stream.waiting:
            self._turn(stream)

    # Writing

    def flush(self) -> None:
        """Write what the windows and the socket take."""
        size = 0
        while self._turns and not self.paused:
            stream = self._turns.popleft()
            if stream.waiting:
                room = min(stream.window, self.window, self.largest_frame)
                if room <= 0:
                    if stream.window > 0:
                        self._blocked.append(stream)
                    else:
                        stream.in_turn = False
                    continue
                size += self._frame(stream, room)
            if stream.waiting:
                self._turns.append(stream)
            else:
                stream.in_turn = False
                if stream.tail is not None:
                    self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream.number, stream.tail))
                    stream.tail = None
                    self._out.append(self._finished(stream.number))
            if size >= BATCH:
                self._write()
                size = 0
        self._write()

    def _frame(self, stream: Outgoing, room: int) -> int:
        """One frame of DATA with at most ``room`` bytes; returns how many."""
        parts = stream.parts
        size = 0
        taken: list[bytes | memoryview] = [b""]
        while parts and size < room:
            part = parts.popleft()
            if len(part) > room - size:
                parts.appendleft(part[room - size :])
                part = part[: room - size]
            size += len(part)
            taken.append(part)
        taken[0] = struct.pack(">IBI", size << 8 | DATA, 0, stream.number)
        self._out += taken
        stream.window -= size
        self.window -= size
        stream.waiting -= size
        stream.taken += size
        self._tally.held -= size
        return size

    def _write(self) -> None:
        if self._out and self._transport is not None:
            raw = b"".join(self._out)
            self._out.clear()
            self._transport.write(raw)
