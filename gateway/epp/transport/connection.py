"""One HTTP/2 connection of a gateway: keeps the rules of RFC 9113, and gives each call its data.

All of a chunk is handled, and what it leads to is written, within the call in which the event loop brings it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import cast

from gateway.epp.transport import frames
from gateway.epp.transport.call import HEAD, UNIMPLEMENTED, Call, trailers
from gateway.epp.transport.frame_reader import FrameReader
from gateway.epp.transport.frames import (
    ACK,
    END_STREAM,
    LARGEST_WINDOW,
    LAST_STREAM,
    WINDOW,
    ConnectionFault,
    ErrorCode,
    StreamFault,
)
from gateway.epp.transport.heads import HeadDecoder, Headers, is_request, literal
from gateway.epp.transport.limits import Rate, Share
from gateway.epp.transport.sending import Outgoing, Sending
from gateway.epp.transport.shared import Shared

METHOD_NOT_ALLOWED = literal(b":status", b"405")
UNSUPPORTED_MEDIA_TYPE = literal(b":status", b"415")
"""gRPC over HTTP/2: a request that is no gRPC is answered in the words of HTTP."""


class Connection(asyncio.Protocol):
    """``calls``: those that are open, by the numbers of their streams."""

    def __init__(self, shared: Shared, connections: set[Connection]) -> None:
        """``connections``: it is in there while it is open. A TLS handshake that fails never opens it."""
        loop, limits = asyncio.get_running_loop(), shared.limits
        self.calls: dict[int, Call] = {}
        self._shared = shared
        self._connections = connections
        self._made_at = loop.time()
        self._transport: asyncio.Transport | None = None
        self._sending = Sending(shared.waiting, self._finished)
        self._reader = FrameReader(self._on_frame, limits.head)
        self._heads = HeadDecoder(limits.head)
        self._over = False  # what comes is dropped
        self._last = 0  # the highest number of a stream of the peer's
        self._window = limits.connection_window
        self._settings = Rate("SETTINGS", limits.settings, loop.time)
        self._resets = Rate("calls that are reset", limits.resets, loop.time)
        self._idle_frames = Rate("frames that carry nothing", limits.idle_frames, loop.time)
        self._incomplete = Share(shared.incomplete)
        self._stuck: dict[int, tuple[int, float]] = {}  # how much has gone through streams that wait, and since when
        self._handlers = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limits = self._shared.limits
        self._transport = made = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        keep_alive(made.get_extra_info("socket"))
        made.set_write_buffer_limits(high=limits.buffer)
        ours = {
            frames.MAX_CONCURRENT_STREAMS: limits.streams,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window,
            frames.MAX_HEADER_LIST: limits.head,
        }
        self._connections.add(self)
        self._sending.start(made)
        self._sending.control(frames.settings(ours) + frames.window_update(0, limits.connection_window - WINDOW))
        self._sending.flush()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._sending.reading = True
        try:
            self._reader.feed(data)
        except ConnectionFault as fault:
            self._shared.report(fault)
            self._finish(frames.goaway(self._last, fault.code, str(fault)), "refused")
        finally:
            self._sending.reading = False
            self._sending.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self._sending.stop()
        self._end_all("connection lost")
        self._connections.discard(self)

    def pause_writing(self) -> None:
        """The peer does not read. Its frames are left in the socket, or our answers to them would pile up here."""
        self._sending.paused = True
        if self._transport is not None and not self._over:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._sending.paused = False
        if self._transport is not None and not self._over:
            self._transport.resume_reading()
        self._sending.flush()

    # Asked by the server

    def leave(self) -> None:
        """Ask the peer to begin no calls here any more. Those that are on their way are served."""
        self._sending.control(frames.goaway(LAST_STREAM, ErrorCode.NO_ERROR))

    def end_calls(self) -> None:
        """End each call properly: a gateway goes on without us."""
        for call in list(self.calls.values()):
            call.refuse(0, "", "drained")

    def close(self) -> None:
        """End what is left, and close when the peer has read it, or after ``limits.linger``."""
        self._finish(frames.goaway(self._last, ErrorCode.NO_ERROR), "connection lost")

    def abort(self) -> None:
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float) -> None:
        """End what takes too long."""
        limits = self._shared.limits
        if not self._reader.begun and now - self._made_at > limits.silence:
            self.abort()
            return
        stuck = {}
        for number, call in list(self.calls.items()):
            if call.out.waiting or call.begun:
                moved = call.out.taken + call.come
                before, since = self._stuck.get(number, (-1, now))
                stuck[number] = (before, since) if before == moved else (moved, now)
                if now - stuck[number][1] > limits.stall:
                    what = "takes nothing of its answer" if call.out.waiting else "does not go on with a message"
                    self._reset(StreamFault(number, ErrorCode.CANCEL, f"it {what}"))
        self._stuck = stuck

    def _finish(self, last_words: bytes, how: str) -> None:
        transport = self._transport
        if self._over or transport is None:
            return
        self._over = True
        self._end_all(how)
        self._sending.control(last_words)
        self._sending.flush()
        self._sending.stop()
        if self._sending.paused:
            transport.resume_reading()
        # What still comes is read and dropped, or the system would reset the connection before the peer has read why.
        if transport.can_write_eof():
            with contextlib.suppress(OSError):  # the peer has gone
                transport.write_eof()
        else:
            transport.close()
        asyncio.get_running_loop().call_later(self._shared.limits.linger, transport.abort)

    def _end_all(self, how: str) -> None:
        calls, self.calls = list(self.calls.values()), {}
        for call in calls:
            call.gone(how)

    # Frames

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        handler = self._handlers.get(kind)
        if handler is None:  # PRIORITY, GOAWAY (the peer takes no streams of ours: there are none), what nobody knows
            self._idle_frames.hit()
            return
        try:
            handler(flags, number, payload)
        except StreamFault as fault:
            self._resets.hit()
            self._reset(fault)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size, last = len(payload), flags & END_STREAM
        if not size and not last:
            self._idle_frames.hit()
        limits = self._shared.limits
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        if self._window < limits.connection_window // 2:
            self._sending.control(frames.window_update(0, limits.connection_window - self._window))
            self._window = limits.connection_window
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        call = self._of_stream(number)
        if call is None:
            return
        if call.half_closed:
            raise StreamFault(number, ErrorCode.STREAM_CLOSED, "DATA after the end of its stream")
        call.window -= size
        if call.window < 0:
            raise StreamFault(number, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        if call.window < limits.stream_window // 2 and not last:
            self._sending.control(frames.window_update(number, limits.stream_window - call.window))
            call.window = limits.stream_window
        if not call.over:
            call.data(payload)
        if last:
            call.half_close()

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number % 2:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS of a stream that is not the client's")
        headers = self._heads.decode(payload)
        if number > self._last:
            self._last = number
            self._open(number, flags, headers)
            return
        call = self.calls.get(number)
        if call is None:
            if headers is None or b":path" in headers:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream's number is not above those before it")
            return  # trailers of a call that was ended here
        if call.half_closed:
            raise StreamFault(number, ErrorCode.STREAM_CLOSED, "trailers after the end of their stream")
        if headers is None or not flags & END_STREAM or any(name[:1] == b":" for name in headers):
            raise StreamFault(number, ErrorCode.PROTOCOL_ERROR, "malformed trailers")
        call.half_close()

    def _open(self, number: int, flags: int, headers: Headers | None) -> None:
        shared = self._shared
        if headers is None or not is_request(headers):
            raise StreamFault(number, ErrorCode.PROTOCOL_ERROR, "malformed headers")
        if len(self.calls) >= shared.limits.streams:
            raise StreamFault(number, ErrorCode.REFUSED_STREAM, f"{len(self.calls)} calls are open")
        out = Outgoing(number, self._sending.initial_window)
        call = Call(out, self._sending, self._reset, self._incomplete, shared.limits.message)
        call.window = shared.limits.stream_window
        self.calls[number] = call
        path = headers[b":path"].decode("latin-1")
        method = shared.methods.get(path)
        if headers[b":method"] != b"POST":
            call.answer(METHOD_NOT_ALLOWED)
        elif not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            call.answer(UNSUPPORTED_MEDIA_TYPE)
        elif method is None:
            call.answer(HEAD + trailers(UNIMPLEMENTED, f"unknown method {path}"))
        elif shared.ending:
            call.end()
        else:
            call.open(method)
        if flags & END_STREAM:
            call.half_close()

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        code = int.from_bytes(payload)
        call = self._of_stream(number)
        if call is None:
            self._idle_frames.hit()
            return
        if not call.answered:
            self._resets.hit()
        del self.calls[number]
        call.gone(f"reset {code}")

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if flags & ACK:
            self._idle_frames.hit()
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS that acknowledge and set")
            return
        self._settings.hit()
        for name, value in dict(frames.settings_in(payload)).items():  # of thousands of one name the last counts
            if name == frames.INITIAL_WINDOW_SIZE:
                more, self._sending.initial_window = value - self._sending.initial_window, value
                for call in self.calls.values():
                    if call.out.window + more > LARGEST_WINDOW:
                        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large")
                    self._sending.credit_stream(call.out, more)
            elif name == frames.MAX_FRAME_SIZE:
                self._sending.largest_frame = value
        self._sending.control(frames.frame(frames.SETTINGS, ACK, 0))

    def _on_push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        self._idle_frames.hit()
        if not flags & ACK:
            self._sending.control(frames.frame(frames.PING, ACK, 0, payload))

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        more = int.from_bytes(payload) & LARGEST_WINDOW
        if not number:
            if not more:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self._sending.credit(more)
        elif (call := self._of_stream(number)) is not None:
            if not more:
                raise StreamFault(number, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self._sending.credit_stream(call.out, more)

    def _of_stream(self, number: int) -> Call | None:
        """None: it is closed, and what was on its way is ignored. Raises ConnectionFault where it never was open."""
        if (call := self.calls.get(number)) is None and (number > self._last or not number % 2):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame of stream {number}, which never was open")
        return call

    # The ends of streams

    def _reset(self, fault: StreamFault) -> None:
        self._shared.report(fault)
        self._sending.control(frames.rst_stream(fault.number, fault.code))
        if (call := self.calls.pop(fault.number, None)) is not None:
            call.gone("refused")

    def _finished(self, number: int) -> bytes:
        """What follows the end of our half: the peer need say nothing more of the other."""
        call = self.calls.pop(number, None)
        return b"" if call is None or call.half_closed else frames.rst_stream(number, ErrorCode.NO_ERROR)


def keep_alive(connected: socket.socket | None) -> None:
    """Let the system find out within a minute that the peer's machine is gone, or its calls would be open for ever."""
    if connected is None:
        return
    with contextlib.suppress(OSError):  # a Unix socket
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # No keep-alive is sent while the peer has not acknowledged what it was sent; USER_TIMEOUT (ms) is for that.
        times = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
        for option, value in times:
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
