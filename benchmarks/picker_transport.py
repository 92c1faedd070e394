"""``python -m benchmarks.picker_transport``: what a call of a gateway costs the picker's own gRPC server, and grpc.aio.

Two servers on uvloop, ours and grpc.aio's, give the same answers without placing anything: so the difference is that of
the transports. A client sends the frames that Envoy sends, some calls at a time, to the two in turn, and reads the CPU
clock of each server's process before and after. So whatever else runs on the machine meets both alike.

It fails if ours is not worth its code: if grpc.aio costs less than twice as much, in the middle of all rows.

The modes are those of docs/envoy.md: in ``request`` the gateway resets the call when it is answered; in ``ends`` it
tells the answer's headers and its end; in ``full`` it tells each of 64 events, too.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from hpack import Encoder

from benchmarks.data_path.usage import cpu
from gateway.commands.processes import Process, Processes, free_port, sigterm_raises
from gateway.epp.messages import (
    BodyResponse,
    CommonResponse,
    HeaderMap,
    HeadersResponse,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    header_mutation,
    streamed_chunk,
)
from gateway.epp.transport import frames
from gateway.epp.transport.server import PROCESS, Server, methods
from gateway.restart.listener import Listener

OURS, GRPC = SERVERS = ("ours", "grpc.aio")
MODES = ("request", "ends", "full")

EVENTS = 64
BODY = b'{"model": "sim", "prompt": "%s"}' % (b"word " * 400)
EVENT = b'data: {"choices": [{"index": 0, "text": " word"}]}\n\n'

SLICE = 8
"""Calls of a server in a row: some milliseconds, so that many a slice is not disturbed by what else runs."""

WORTH = 2.0
"""The factor from which on a server of our own is worth its code."""

WARM = 200
"""Calls of each server before."""


# The servers


def answers(message: ProcessingRequest) -> list[ProcessingResponse]:
    """A picker's, to each of a gateway's messages."""
    kind = message.WhichOneof("request")
    if kind == "request_body":
        name, value = "x-gateway-destination-endpoint", "10.0.0.17:8000"
        common = CommonResponse(header_mutation=header_mutation([(name, value)]))
        routed = ProcessingResponse(request_headers=HeadersResponse(response=common))
        routed.dynamic_metadata["envoy.lb"] = {name: value}
        return [routed, streamed_chunk(message.request_body.body, last=True)]
    if kind == "response_headers":
        return [ProcessingResponse(response_headers=HeadersResponse())]
    if kind == "response_body":
        passed = streamed_chunk(message.response_body.body, last=message.response_body.end_of_stream)
        return [ProcessingResponse(response_body=BodyResponse(response=passed.request_body.response))]
    return []


class Answering:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def received(self, message: ProcessingRequest) -> None:
        for answer in answers(message):
            self.stream.send(answer)

    def half_closed(self) -> None:
        self.stream.end()

    def gone(self, how: str) -> None: ...


async def serve_ours(port: int) -> None:
    await Listener(Server(methods(lambda: True, Answering)), backlog=128).open("127.0.0.1", port)
    await asyncio.Event().wait()


async def serve_grpc(port: int) -> None:
    import grpc

    async def process(request: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            for answer in answers(message):
                await context.write(answer)

    handler = grpc.stream_stream_rpc_method_handler(
        process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
    )
    service, _, method = PROCESS[1:].partition("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


# The client


class Failed(Exception):
    """An answer is missing or wrong."""


def headers(**values: str) -> HttpHeaders:
    found = [(name.replace("_", ":", 1) if name[0] == "_" else name.replace("_", "-"), values[name]) for name in values]
    return HttpHeaders(headers=HeaderMap(headers=[HeaderValue(key=key, raw_value=one.encode()) for key, one in found]))


BEGIN = ProcessingRequest(
    request_headers=headers(
        _authority="models.example.com",
        _path="/v1/completions",
        _method="POST",
        _scheme="http",
        content_type="application/json",
        content_length=str(len(BODY)),
        accept="*/*",
        accept_encoding="gzip, deflate",
        user_agent="OpenAI/Python 3.52",
        x_forwarded_proto="http",
        x_request_id="c1a0ab6c-8a0f-4a70-a03d-6bd1f6b6ee4b",
        authorization="Bearer sk-" + "x" * 40,
    ),
    protocol_config=ProtocolConfiguration(request_body_mode=4, response_body_mode=4),
)
ANSWERED = ProcessingRequest(
    response_headers=headers(_status="200", content_type="text/event-stream", date="Sat, 28 Nov 2026 20:00:00 GMT")
)


def prefixed(message: ProcessingRequest) -> bytes:
    raw = message.SerializeToString()
    return b"\0" + len(raw).to_bytes(4) + raw


ASKED = prefixed(BEGIN), prefixed(ProcessingRequest(request_body=HttpBody(body=BODY, end_of_stream=True)))
TOLD = prefixed(ANSWERED)
PART = prefixed(ProcessingRequest(response_body=HttpBody(body=EVENT)))
PARTS = [PART] * (EVENTS - 1) + [prefixed(ProcessingRequest(response_body=HttpBody(body=EVENT, end_of_stream=True)))]


class Client:
    """A gateway's connection to a server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = Encoder()
        self._data = b""
        self._next = 1
        self._messages: dict[int, bytearray] = {}
        self._ended: set[int] = set()
        window = frames.window_update(0, frames.LARGEST_WINDOW - frames.WINDOW)
        self._socket.sendall(frames.PREFACE + frames.settings({4: frames.LARGEST_WINDOW}) + window)

    def ask(self, calls: int, at_once: int, mode: str) -> None:
        for _ in range(calls // at_once):
            streams = [self._begin() for _ in range(at_once)]
            self._wait(streams, 2)
            if mode == "request":
                for stream in streams:
                    self._socket.sendall(frames.rst_stream(stream, frames.ErrorCode.INTERNAL_ERROR))
            else:
                self._tell(streams, TOLD, 3)
                if mode == "full":
                    for number, part in enumerate(PARTS, 4):
                        self._tell(streams, part, number)
                for stream in streams:
                    self._socket.sendall(frames.frame(frames.DATA, frames.END_STREAM, stream))
                while not self._ended.issuperset(streams):
                    self._read()
            for stream in streams:
                self._messages.pop(stream)
                self._ended.discard(stream)

    def close(self) -> None:
        self._socket.close()

    def _begin(self) -> int:
        stream, self._next = self._next, self._next + 2
        block = self._encoder.encode(
            [
                *((":method", "POST"), (":scheme", "http"), (":path", PROCESS), (":authority", "picker")),
                *(("te", "trailers"), ("content-type", "application/grpc"), ("x-envoy-internal", "true")),
                *(("x-forwarded-for", "10.0.0.4"), ("grpc-timeout", "3600000m")),
            ]
        )
        self._messages[stream] = bytearray()
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block)
        self._socket.sendall(head + frames.frame(frames.DATA, 0, stream, ASKED[0]))
        self._socket.sendall(frames.frame(frames.DATA, 0, stream, ASKED[1]))
        return stream

    def _tell(self, streams: Sequence[int], message: bytes, answers: int) -> None:
        for stream in streams:
            self._socket.sendall(frames.frame(frames.DATA, 0, stream, message))
        self._wait(streams, answers)

    def _wait(self, streams: Sequence[int], answers: int) -> None:
        """Until each has so many answers."""
        while any(count(self._messages[stream]) < answers for stream in streams):
            self._read()

    def _read(self) -> None:
        more = self._socket.recv(1 << 18)
        if not more:
            raise Failed("the server has closed the connection")
        data, at = self._data + more, 0
        while len(data) - at >= frames.HEAD:
            size = int.from_bytes(data[at : at + 3])
            if len(data) - at - frames.HEAD < size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + frames.HEAD])
            payload = data[at + frames.HEAD : at + frames.HEAD + size]
            at += frames.HEAD + size
            if kind == frames.DATA:
                self._messages[stream] += payload
            elif kind == frames.GOAWAY or (kind == frames.RST_STREAM and stream not in self._ended):
                raise Failed(f"the server ends with {payload!r}")
            elif kind in (frames.PING, frames.SETTINGS) and not flags & frames.ACK:
                echoed = payload if kind == frames.PING else b""
                self._socket.sendall(frames.frame(kind, frames.ACK, 0, echoed))
            if kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM:
                self._ended.add(stream)
        self._data = data[at:]


def count(messages: bytearray) -> int:
    """How many are complete."""
    found = at = 0
    while len(messages) - at >= 5:
        at += 5 + int.from_bytes(messages[at + 1 : at + 5])
        found += at <= len(messages)
    return found


def measure(servers: Mapping[str, tuple[Process, int]], rounds: int, at_once: int, mode: str) -> dict[str, list[float]]:
    """By server, microseconds of CPU for each call, of each round."""
    took: dict[str, list[float]] = {name: [] for name in servers}
    clients = {name: Client(port) for name, (_, port) in servers.items()}
    try:
        for client in clients.values():
            client.ask(WARM if mode != "full" else SLICE * 2, at_once, mode)
        for number in range(rounds):
            for name in SERVERS if number % 2 else SERVERS[::-1]:
                pids = [servers[name][0].pid]
                before = cpu(pids)
                clients[name].ask(SLICE, at_once, mode)
                took[name].append((cpu(pids) - before) / SLICE * 1e6)
    finally:
        for client in clients.values():
            client.close()
    return took


def undisturbed(took: Sequence[float]) -> float:
    """The lower quartile: what is above may have been interrupted, and found its caches cold then."""
    return quantiles(took, n=4)[0]


def main() -> int:
    options = _parser().parse_args()
    if options.serve:
        import uvloop

        uvloop.run((serve_ours if options.serve == OURS else serve_grpc)(options.port))
    with sigterm_raises(SystemExit(143)), tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        servers = {}
        for name in SERVERS:
            port = free_port()
            command = [sys.executable, "-m", "benchmarks.picker_transport", "--serve", name, "--port", str(port)]
            servers[name] = processes.start(name, command), port
            _wait_for(port)
        factors = []
        print("| mode | calls at once | ours, µs | grpc.aio, µs | factor |\n|---|--:|--:|--:|--:|")
        for mode in MODES:
            rounds = options.rounds if mode != "full" else max(8, options.rounds // 8)
            for at_once in options.at_once:
                took = measure(servers, rounds, at_once, mode)
                ours, theirs = (undisturbed(took[name]) for name in (OURS, GRPC))
                factors.append(theirs / ours)
                print(f"| {mode} | {at_once} | {ours:.0f} | {theirs:.0f} | {factors[-1]:.1f} |", flush=True)
    return 0 if median(factors) >= WORTH else 1


def _wait_for(port: int) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picker_transport", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="of a slice of each server (300; in full an eighth)")
    parser.add_argument(
        "--at-once",
        type=lambda each: [int(one) for one in each.split(",")],
        default=[1, 8],
        help="calls at once, separated by commas: divisors of 8 (1,8)",
    )
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
