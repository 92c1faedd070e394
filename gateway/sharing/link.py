"""One connection between two workers of a host: whole messages out and in, over a Unix stream socket.

Rules: a frame is its length and a msgpack array ``[topic, bytes]``. What a worker tells in one turn of its loop is
written together, at the turn's end. A link never waits: a sibling that does not read gets cut off, and all that it
missed is told anew when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import msgspec

from gateway.core.log_limit import LogLimit, left_out

log = logging.getLogger("kvgate.sharing")

LENGTH = struct.Struct("<I")

MAX_FRAME = 64 * 1024 * 1024
"""Bytes of one message: many times the largest, an engine's report with ten thousand adapters (1 MB)."""

MAX_UNSENT = 64 * 1024 * 1024
"""Bytes that may wait for a sibling that does not read: the reports of a thousand engines in full (10 MB) fit, and what
a busy worker tells in some seconds, after which its parent ends one that hangs."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[str, bytes])
_CREDENTIALS = struct.Struct("3i")


def frame(topic: str, message: bytes) -> bytes:
    """A message as it is sent. Raises ValueError if it is too long."""
    body = _ENCODER.encode((topic, message))
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes to the other workers: at most {MAX_FRAME} are sent")
    return LENGTH.pack(len(body)) + body


class Link(asyncio.Protocol):
    """``heard``: called with each message. ``lost``: called once when the connection has ended, however. ``limit``: of
    lines about what comes here: any process of our user can connect, as often as it likes."""

    def __init__(
        self, heard: Callable[[Link, str, bytes], None], lost: Callable[[Link], None], limit: LogLimit
    ) -> None:
        self.number: int | None = None
        """Of the sibling, once it has said it."""
        self._heard = heard
        self._lost = lost
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._unsent: list[bytes] = []

    def queue(self, framed: bytes) -> None:
        """To be sent with the next ``flush``."""
        self._unsent.append(framed)

    def flush(self) -> None:
        transport, unsent = self._transport, self._unsent
        if transport is None or not unsent:
            return
        self._unsent = []
        transport.write(b"".join(unsent))
        if transport.get_write_buffer_size() > MAX_UNSENT:
            self._complain(f"worker {self.number} does not read what the others tell it: its connection is cut")
            self.abort()

    def become(self, number: int, heard: Callable[[Link, str, bytes], None], lost: Callable[[Link], None]) -> None:
        """The sibling has said its number. ``heard``, ``lost``: are called from now on."""
        self.number, self._heard, self._lost = number, heard, lost

    def close(self) -> None:
        """End it when what was queued is sent, if the sibling reads; nothing is heard any more."""
        self.flush()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def abort(self) -> None:
        """End it now."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if not is_own(transport.get_extra_info("socket")):
            self._complain("a process of another user has connected to a worker's socket: it is cut off")
            self.abort()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH.size and self._transport is not None:
            (length,) = LENGTH.unpack_from(received, start)
            if length > MAX_FRAME:
                self._garbled(f"a frame of {length} bytes")
                return
            end = start + LENGTH.size + length
            if len(received) < end:
                break
            try:
                topic, message = _DECODER.decode(received[start + LENGTH.size : end])
            except msgspec.MsgspecError as error:
                self._garbled(str(error))
                return
            start = end
            self._heard(self, topic, message)
        del received[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._unsent.clear()
        self._lost(self)

    def _garbled(self, what: str) -> None:
        """After this nothing of what follows can be believed."""
        self._complain(f"worker {self.number} sends what is no message: its connection is cut", what)
        self._received.clear()
        self.abort()

    def _complain(self, problem: str, what: str = "") -> None:
        """``what``: it was; it tells no line from another."""
        if (more := self._limit.admit(problem)) is not None:
            log.warning("%s%s%s", problem, what and f": {what}", left_out(more))


def is_own(connection: Any) -> bool:
    """Whether the other end of a Unix socket is a process of our own user. The directory keeps others out already."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())
