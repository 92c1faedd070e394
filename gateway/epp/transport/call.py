"""One gRPC call on a stream of HTTP/2: messages out of its DATA, and answers into DATA and trailers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message

from gateway.epp.transport.frames import END_HEADERS, HEADERS, ErrorCode, StreamFault, frame
from gateway.epp.transport.heads import literal
from gateway.epp.transport.limits import Share
from gateway.epp.transport.sending import Outgoing, Sending

log = logging.getLogger("kvgate.epp")

OK, CANCELLED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 1, 3, 8, 12, 13
"""Status codes of gRPC."""

PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""

LONGEST_REASON = 512
"""Characters of a call's ``grpc-message``."""


class Calls(Protocol):
    """What handles a call; ``gateway.epp.stream.Handler`` is one."""

    def received(self, message: Any) -> None: ...

    def half_closed(self) -> None: ...

    def gone(self, how: str) -> None: ...


class Method(NamedTuple):
    """``parse``: bytes to a message; raises if they are none. ``open``: begins a call."""

    parse: Callable[[bytes], Any]
    open: Callable[[Call], Calls]


Methods = Mapping[str, Method]
"""By path: ``/package.Service/Method``."""


HEAD = b"\x88" + literal(b"content-type", b"application/grpc")  # :status 200, which has a number
TAIL = literal(b"grpc-status", b"0")


def trailers(status: int, reason: str) -> bytes:
    if not status and not reason:
        return TAIL
    block = literal(b"grpc-status", str(status).encode())
    if reason:
        text = "".join(
            chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
            for byte in reason[:LONGEST_REASON].encode()
        )
        block += literal(b"grpc-message", text.encode())
    return block


class Call:
    """Is the ``Stream`` of its handler. ``out``: what waits to be sent of it. ``window``: bytes that the peer may send.
    ``answered``: headers were sent, and the answer goes on. ``over``: it was ended, and what comes is dropped.
    ``half_closed``: the peer sends no more. ``come``: bytes of messages that did, by which a peer is known that begins
    one and does not go on.
    """

    __slots__ = (
        *("_buffer", "_handler", "_incomplete", "_largest", "_parse", "_reset", "_sending"),
        *("answered", "come", "half_closed", "out", "over", "window"),
    )

    def __init__(
        self, out: Outgoing, sending: Sending, reset: Callable[[StreamFault], None], incomplete: Share, largest: int
    ) -> None:
        """``reset``: ends the stream at once. ``incomplete``: of its connection. ``largest``: bytes of a message."""
        self.out = out
        self.window = 0
        self.come = 0
        self.answered = False
        self.over = False
        self.half_closed = False
        self._sending = sending
        self._reset = reset
        self._incomplete = incomplete
        self._largest = largest
        self._buffer = bytearray()
        self._handler: Calls | None = None
        self._parse: Callable[[bytes], Any] = bytes

    # Stream

    def send(self, message: Message) -> None:
        if self.over:
            return
        raw = message.SerializeToString()
        if not self._sending.room_for(PREFIX + len(raw)):
            self._close()
            asyncio.get_running_loop().call_soon(self._give_up)  # its handler is at work
            return
        if not self.answered:
            self.answered = True
            self._sending.control(frame(HEADERS, END_HEADERS, self.out.number, HEAD))
        self._sending.data(self.out, b"\0" + len(raw).to_bytes(4) + raw)

    def end(self, status: int = OK, message: str = "") -> None:
        if self.over:
            return
        block = trailers(status, message)
        self.answer(block if self.answered else HEAD + block)

    @property
    def waiting(self) -> int:
        return self.out.waiting

    @property
    def begun(self) -> bool:
        """Whether part of a message has come, and the rest not yet."""
        return bool(self._buffer)

    # What the connection tells

    def answer(self, block: bytes) -> None:
        """End it with these headers."""
        self._close()
        self._handler = None  # it knows this call
        self._sending.end(self.out, block)

    def open(self, method: Method) -> None:
        self._parse = method.parse
        try:
            self._handler = method.open(self)
        except Exception:
            self._failed()

    def data(self, payload: bytes) -> None:
        """Handle the messages that are complete now."""
        self.come += len(payload)
        if self._buffer:
            self._incomplete.add(len(payload))
            self._buffer += payload
            if len(self._buffer) < PREFIX or len(self._buffer) < PREFIX + int.from_bytes(self._buffer[1:PREFIX]):
                self._check(self._buffer)
                return
            payload = bytes(self._buffer)
            self._forget()
        at, end = 0, len(payload)
        while end - at >= PREFIX and not self.over:
            size = int.from_bytes(payload[at + 1 : at + PREFIX])
            if payload[at] or size > self._largest or end - at - PREFIX < size:
                break
            self._message(payload[at + PREFIX : at + PREFIX + size])
            at += PREFIX + size
        if at < end and not self.over:
            rest = payload[at:] if at else payload
            self._incomplete.add(len(rest))
            self._buffer += rest
            self._check(self._buffer)

    def half_close(self) -> None:
        self.half_closed = True
        if self.over:
            return
        if self._buffer:
            self.refuse(INTERNAL, "the last message is not complete")
        elif self._handler is not None:
            try:
                self._handler.half_closed()
            except Exception:
                self._failed()

    def gone(self, how: str) -> None:
        """Nothing can be sent any more."""
        self._sending.drop(self.out)
        if not self.over:
            self._close()
            self._say_gone(how)

    def refuse(self, status: int, reason: str, how: str = "refused") -> None:
        """End it, and tell the handler."""
        if not self.over:
            handler = self._handler
            self.end(status, reason)
            self._handler = handler
            self._say_gone(how)

    def _check(self, begun: bytearray) -> None:
        """Whether the message that has begun may go on."""
        if begun[0]:
            self.refuse(UNIMPLEMENTED, "compressed messages are not supported")
        elif len(begun) >= PREFIX and (size := int.from_bytes(begun[1:PREFIX])) > self._largest:
            self.refuse(RESOURCE_EXHAUSTED, f"a message of {size} bytes: {self._largest} are the most")
        elif self._incomplete.exceeded:
            self.refuse(RESOURCE_EXHAUSTED, "too many messages come at once")

    def _message(self, raw: bytes) -> None:
        try:
            message = self._parse(raw)
        except Exception:  # google.protobuf's DecodeError is no ValueError in every implementation
            self.refuse(INTERNAL, "a message that cannot be read")
            return
        assert self._handler is not None
        try:
            self._handler.received(message)
        except Exception:
            self._failed()

    def _failed(self) -> None:
        log.exception("a call of the picker failed")
        self.refuse(INTERNAL, "the picker failed", "failed")

    def _give_up(self) -> None:
        text = "too many bytes wait for gateways that do not take them"
        self._reset(StreamFault(self.out.number, ErrorCode.ENHANCE_YOUR_CALM, text))
        self._say_gone("refused")

    def _say_gone(self, how: str) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            try:
                handler.gone(how)
            except Exception:
                log.exception("a call of the picker failed at its end")

    def _close(self) -> None:
        self.over = True
        self._forget()

    def _forget(self) -> None:
        self._incomplete.add(-len(self._buffer))
        self._buffer = bytearray()
