"""A picker's gRPC server in this process, and peers of it: grpc.aio's, and one that sends frames byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from hpack import Decoder, Encoder

from gateway.core.clock import ManualClock
from gateway.core.tls import WatchedContext
from gateway.epp.messages import (
    BodyResponse,
    HeadersResponse,
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
    streamed_chunk,
)
from gateway.epp.stream import Open, Stream
from gateway.epp.transport.call import Methods
from gateway.epp.transport.connection import Connection
from gateway.epp.transport.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SMALLEST_FRAME,
    ErrorCode,
    frame,
    settings,
)
from gateway.epp.transport.limits import Limits
from gateway.epp.transport.server import PROCESS, Server, methods
from gateway.epp.transport.shared import Shared
from gateway.restart.listener import Listener

CHUNK = 62_000


class Echo:
    """A handler that gives a body back, as a picker does in FULL_DUPLEX_STREAMED. ``told``: how calls went."""

    def __init__(self, stream: Stream, told: list[str]) -> None:
        self.stream = stream
        self.told = told
        self.parts: list[bytes] = []

    def received(self, message: ProcessingRequest) -> None:
        if message.WhichOneof("request") == "request_body":
            self.parts.append(message.request_body.body)
            if message.request_body.end_of_stream:
                self.stream.send(ProcessingResponse(request_headers=HeadersResponse()))
                body = b"".join(self.parts)
                for at in range(0, len(body) or 1, CHUNK):
                    self.stream.send(streamed_chunk(body[at : at + CHUNK], last=at + CHUNK >= len(body)))
        elif message.WhichOneof("request") == "response_headers":
            self.stream.send(ProcessingResponse(response_headers=HeadersResponse()))
        elif message.WhichOneof("request") == "response_body":
            self.stream.send(ProcessingResponse(response_body=BodyResponse()))

    def half_closed(self) -> None:
        self.told.append("half-closed")
        self.stream.end()

    def gone(self, how: str) -> None:
        self.told.append(how)


@dataclass
class Served:
    """``told``: what the echoing handlers were told of their calls' ends."""

    server: Server
    listener: Listener
    port: int
    told: list[str]


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | None = None,
    *,
    open_call: Open | None = None,
    ready: Callable[[], bool] = lambda: True,
    tls: WatchedContext | None = None,
) -> AsyncIterator[Served]:
    """``open_call``: None for ``Echo``."""
    told: list[str] = []
    server = Server(methods(ready, open_call or (lambda stream: Echo(stream, told))), limits)
    listener = Listener(server, backlog=128, tls=tls)
    try:
        yield Served(server, listener, await listener.open("127.0.0.1", 0), told)
    finally:
        await listener.close()


def requests(body: bytes, chunk: int = CHUNK) -> list[ProcessingRequest]:
    """What Envoy sends of a request with ``body``."""
    parts = [body[at : at + chunk] for at in range(0, len(body) or 1, chunk)]
    return [
        ProcessingRequest(request_headers=HttpHeaders()),
        *(
            ProcessingRequest(request_body=HttpBody(body=part, end_of_stream=number == len(parts)))
            for number, part in enumerate(parts, 1)
        ),
    ]


def body_of(answers: list[ProcessingResponse]) -> bytes:
    """Of what a picker answers to a request in FULL_DUPLEX_STREAMED."""
    return b"".join(one.request_body.response.body_mutation.streamed_response.body for one in answers)


def process(channel: grpc.aio.Channel) -> Any:
    """``ExternalProcessor/Process`` of grpc.aio."""
    return channel.stream_stream(PROCESS, ProcessingRequest.SerializeToString, ProcessingResponse.FromString)


def prefixed(message: Any) -> bytes:
    """A message as gRPC sends it."""
    raw = message.SerializeToString()
    return b"\0" + len(raw).to_bytes(4) + raw


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> ErrorCode:
        """Of RST_STREAM and GOAWAY."""
        return ErrorCode(int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload[:4]))


HEADS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": PROCESS,
    ":authority": "picker",
    "te": "trailers",
    "content-type": "application/grpc",
}


@dataclass
class Peer:
    """A client that sends what it is told. ``seen``: the frames that have come."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    encoder: Encoder = field(default_factory=Encoder)
    decoder: Decoder = field(default_factory=Decoder)
    seen: list[Frame] = field(default_factory=list)

    def send(self, *raw: bytes) -> None:
        self.writer.write(b"".join(raw))

    def begin(self, values: Mapping[int, int] | None = None) -> None:
        self.send(PREFACE, settings(dict(values or {})))

    def head(self, stream: int, flags: int = END_HEADERS, **changed: str | None) -> bytes:
        """HEADERS of a call. ``changed``: with ``_`` before the name for a pseudo-header; None: without it."""
        heads = dict(HEADS)
        for name, value in changed.items():
            key = name.replace("_", ":", 1) if name[0] == "_" else name.replace("_", "-")
            heads.pop(key, None)
            if value is not None:
                heads[key] = value
        ordered = sorted(heads.items(), key=lambda each: each[0][0] != ":")
        return frame(HEADERS, flags, stream, self.encoder.encode(ordered))

    def call(self, stream: int, *messages: Any, flags: int = 0) -> bytes:
        """HEADERS, and ``messages`` in frames of DATA as long as may be; ``flags``: of the last."""
        raw = b"".join(map(prefixed, messages))
        parts = [raw[at : at + SMALLEST_FRAME] for at in range(0, len(raw), SMALLEST_FRAME)]
        data = [frame(DATA, flags if number == len(parts) else 0, stream, part) for number, part in enumerate(parts, 1)]
        return b"".join([self.head(stream), *data])

    async def frame(self) -> Frame:
        """The next; raises asyncio.IncompleteReadError where the connection ends."""
        head = await self.reader.readexactly(9)
        size = int.from_bytes(head[:3])
        made = Frame(head[3], head[4], int.from_bytes(head[5:]) & 0x7FFFFFFF, await self.reader.readexactly(size))
        self.seen.append(made)
        return made

    async def until(self, kind: int, *, stream: int | None = None, last: bool = False) -> Frame:
        """The next frame of that kind. ``last``: with END_STREAM."""
        while True:
            one = await asyncio.wait_for(self.frame(), 30)
            fits = one.kind == kind and (stream is None or one.stream == stream)
            if fits and (not last or one.flags & END_STREAM) and not (kind == SETTINGS and one.flags & ACK):
                return one

    async def headers(self, stream: int, *, last: bool = False) -> dict[str, str]:
        one = await self.until(HEADERS, stream=stream, last=last)
        return dict(self.decoder.decode(one.payload))

    async def ended(self) -> ErrorCode:
        """The code of GOAWAY, after which the connection ends."""
        code = (await self.until(GOAWAY)).code
        assert await asyncio.wait_for(self.reader.read(), 30) == b""
        return code

    async def reset(self, stream: int) -> ErrorCode:
        return (await self.until(RST_STREAM, stream=stream)).code

    def data(self, stream: int) -> bytes:
        """All DATA that has come of it."""
        return b"".join(one.payload for one in self.seen if one.kind == DATA and one.stream == stream)


@contextlib.asynccontextmanager
async def peer(port: int, *, begin: bool = True, room: int = 0) -> AsyncIterator[Peer]:
    """``room``: bytes that the system takes for it before it reads; 0: what the system likes."""
    made = socket.socket()
    made.setblocking(False)
    if room:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=made)
    client = Peer(reader, writer)
    try:
        if begin:
            client.begin()
        yield client
    finally:
        writer.transport.abort()


class Pipe:
    """A transport that takes everything. ``written``: what was."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None: ...


class InMemory:
    """A connection. ``calls``: what serves them; None: an ``Echo``, and ``told`` is how they ended."""

    def __init__(self, limits: Limits, calls: Methods | None = None) -> None:
        self.told: list[str] = []
        opened = calls or methods(lambda: True, lambda stream: Echo(stream, self.told))
        self.shared = Shared(opened, limits, ManualClock())
        self.pipe: Any = Pipe()
        self.connection = Connection(self.shared, set())
        self.connection.connection_made(self.pipe)

    def frames(self) -> list[Frame]:
        found, at, raw = [], 0, bytes(self.pipe.written)
        while at < len(raw):
            size = int.from_bytes(raw[at : at + 3])
            found.append(Frame(raw[at + 3], raw[at + 4], int.from_bytes(raw[at + 5 : at + 9]), raw[at + 9 :][:size]))
            at += 9 + size
        return found

    def meaning(self) -> Any:
        """What was written, without how it was cut into frames: data and ends of each stream, the fate of all."""
        streams: dict[int, list[Any]] = {}
        others = []
        decoder = Decoder()
        for one in self.frames():
            if one.kind == DATA and one.stream in streams and isinstance(streams[one.stream][-1], bytes):
                streams[one.stream][-1] += one.payload
            elif one.kind == DATA:
                streams.setdefault(one.stream, []).append(one.payload)
            elif one.kind == HEADERS:
                streams.setdefault(one.stream, []).append((one.flags, decoder.decode(one.payload)))
            elif one.kind == RST_STREAM:
                streams.setdefault(one.stream, []).append(one.code)
            else:
                others.append(one)
        return streams, others, self.told, self.pipe.closed
