"""One connection to an engine: HTTP/1.1 over a transport, one request at a time, its answer parsed by llhttp.

Nothing here waits: each chunk is passed to the ``Receiver`` within the call that brought it, so it goes from the
engine's socket to the client's without a task in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEAD = 128 * 1024
"""Bytes of an answer's head: twice what is taken of a client's, and llhttp itself has no limit."""

FRAMING = frozenset({b"content-length", b"transfer-encoding"})
"""An answer without either goes on until its connection ends."""

PIECE = 256 * 1024
"""Bytes of a body that are written at once: TLS encrypts them within the call, in about 0.1 ms."""


class Receiver(Protocol):
    """Gets one answer. After ``end``, ``lost`` or ``garbled`` nothing more is called."""

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The answer's head. ``status``: 101, or 200 and above."""

    def part(self, data: bytes) -> None:
        """More of the body: not empty, and not the last."""

    def end(self, data: bytes) -> None:
        """The last of the body, which may be empty. The connection no longer belongs to this answer."""

    def lost(self, error: Exception | None, *, wordless: bool) -> None:
        """The connection ended before the answer did. ``error``: None if the engine closed it properly. ``wordless``:
        not one byte of the answer came."""

    def garbled(self, detail: str) -> None:
        """The engine sent something that is no answer. The connection is closed."""


class Connection(asyncio.Protocol):
    """``free`` is called with the connection when its answer is complete and it can take another request.

    ``usable``: it seems able to take a request; an engine's close that has not arrived yet is not known.
    ``idle_since``: ``loop.time()`` of when it last was complete; 0 before it has served any. ``received_at``:
    ``loop.time()`` of when bytes last arrived. ``connect_seconds``: what it took to make. ``error``: what ended it;
    None while it is open, and if it was closed properly.
    """

    def __init__(self, free: Callable[[Connection], None]) -> None:
        self.usable = False
        self.idle_since = 0.0
        self.received_at = 0.0
        self.connect_seconds = 0.0
        self.error: Exception | None = None
        self._free = free
        self._now = asyncio.get_running_loop().time
        self.transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._part: Callable[[bytes], None] | None = None  # gets the body; None where there is no receiver
        # Of the request
        self._rest = memoryview(b"")
        self._full = False
        # Of the answer
        self._headers: list[tuple[bytes, bytes]] | None = []  # None: they have gone on, and the body comes
        self._outside = 0  # bytes since the last part of a body: of a head, of chunk sizes, of trailers
        self._framed = False
        self._paused = False
        self._parts: list[bytes] = []
        self._keep: bool | None = None  # whether it may take another request; None: the answer is not complete
        # llhttp calls it once for each part of a stream, so it is no function of ours.
        self.on_body = self._parts.append
        self._parser = HttpResponseParser(self)

    def send(self, head: bytes, body: bytes, receiver: Receiver) -> None:
        """Send a request; ``receiver`` gets its answer. Call it only while the connection is ``usable``."""
        assert self.transport is not None
        self.usable = False
        self._receiver, self._part = receiver, receiver.part
        self._headers, self._outside = [], 0
        self._framed = False
        self._keep = None
        if len(body) <= PIECE:
            self.transport.write(head + body)  # one segment where it fits: two would be two system calls
            return
        self.transport.write(head)
        self._rest = memoryview(body)
        self._write()

    def divert(self, part: Callable[[bytes], None]) -> None:
        """Give the rest of the answer's body to ``part``, which raises nothing, in the place of ``Receiver.part``."""
        self._part = part

    def pause(self) -> None:
        """Read no more, so that the engine's connection fills up; until ``resume``."""
        if self.transport is not None and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and self._paused:
            self._paused = False
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once, which is how vLLM learns to stop. The receiver is not called any more."""
        self.usable = False
        self._receiver = self._part = None
        self._rest = memoryview(b"")
        if self.transport is not None:
            self.transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.usable = True

    def data_received(self, data: bytes) -> None:
        part = self._part
        if part is None:  # the engine speaks without being asked
            self.abort()
            return
        self.received_at = self._now()
        broken = ""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            broken = "it changes to another protocol"
        except HttpParserError as error:
            broken = str(error)
        parts = self._parts
        if len(parts) == 1:
            body = parts.pop()
        else:
            body = b"".join(parts)
            parts.clear()
        if self._keep is not None:
            receiver, self._keep = self._receiver, self._keep and not broken
            self._end()
            if receiver is not None:
                receiver.end(body)
            return
        if body:
            self._outside = 0
            part(body)
        else:
            self._outside += len(data)
            if self._outside > MAX_HEAD:
                broken = f"more than {MAX_HEAD} bytes of headers"
        if broken:
            self._break(broken)

    def eof_received(self) -> None:
        self.usable = False  # the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self.usable, self.transport, self.error = False, None, error
        receiver, self._receiver, self._part = self._receiver, None, None
        if receiver is None:
            return
        if error is None and self._headers is None and not self._framed:
            receiver.end(b"")  # an answer whose end is the connection's
            return
        receiver.lost(error, wordless=self._headers is not None and not self._outside)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._write()

    # Called by llhttp, within data_received

    def on_message_begin(self) -> None:
        if self._keep is not None:
            raise ValueError("more than was asked for: who knows whose answer it is")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headers is not None:  # else it is a trailer: none of them is known to a client of vLLM
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        if headers is None or self._keep is not None or self._receiver is None:
            return
        if status < 100:
            raise ValueError(f"HTTP status {status}, which there is none of")
        if status < 200 and status != 101:
            # "continue", "early hints": the answer is yet to come
            self._headers = []
            return
        size = codings = 0
        for name, value in headers:
            size += len(name) + len(value)
            if (lower := name.lower()) in FRAMING:
                self._framed = True
                if lower == b"transfer-encoding":
                    codings += 1
                    if codings > 1 or value.strip().lower() != b"chunked":  # llhttp would leave another in the body
                        raise ValueError("a transfer coding that was not asked for")
        if size > MAX_HEAD:
            raise ValueError(f"more than {MAX_HEAD} bytes of headers")
        self._headers = None
        self._receiver.begin(status, headers)

    def on_message_complete(self) -> None:
        if self._headers is None and self._keep is None:
            self._keep = self._parser.should_keep_alive()  # llhttp has forgotten it once feed_data returns

    # Its own

    def _write(self) -> None:
        while self._rest and not self._full and self.transport is not None:
            piece, self._rest = self._rest[:PIECE], self._rest[PIECE:]
            self.transport.write(piece)

    def _end(self) -> None:
        """The answer is complete: be free for another request, or close."""
        self._receiver = self._part = None
        transport = self.transport
        if transport is None:
            return
        if self._rest or transport.get_write_buffer_size():
            # An engine that answers before it has read the request may take what is left of it for the next one; one
            # that never reads it would keep a connection that is closed politely for ever.
            self.abort()
        elif self._keep and not transport.is_closing():
            if self._paused:
                self.resume()
            self.usable = True
            self._free(self)
        else:
            transport.close()

    def _break(self, detail: str) -> None:
        receiver = self._receiver
        self.abort()
        if receiver is not None:
            receiver.garbled(detail)


def encode_head(
    method: str, path: str, authority: str, headers: Sequence[tuple[str, str]], length: int | None
) -> bytes:
    """A request's head. ``headers``: all but Host and those of framing; bytes that are not UTF-8 as surrogates.
    ``length``: of the body; None if the method has none.

    Raises ValueError if a header holds a line break: it would be another header, or another request.
    """
    lines = [f"{method} {path} HTTP/1.1", f"Host: {authority}"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    for name, value in headers:
        lines.append(f"{name}: {value}")
    head = "\r\n".join(lines)
    if head.count("\n") >= len(lines) or head.count("\r") >= len(lines):
        raise ValueError("a header holds a line break")
    return head.encode("utf-8", "surrogateescape") + b"\r\n\r\n"
