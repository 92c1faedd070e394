"""Covers: gateway/epp/transport/frame_reader.py, gateway/epp/transport/call.py.

What a real Envoy sent, as it came (tests/data/epp/README.md), and in other pieces."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from gateway.epp.messages import ProcessingRequest
from gateway.epp.stream import Stream
from gateway.epp.transport.frames import GOAWAY, HEADERS, RST_STREAM, ErrorCode
from gateway.epp.transport.limits import Limits
from gateway.epp.transport.server import methods
from tests.data.epp.record import Routing
from tests.support.http2 import InMemory

FOLDER = Path(__file__).parents[2] / "data" / "epp"

FULL_DUPLEX, BUFFERED = 4, 2
"""Body modes."""


class Heard(Routing):
    """As the picker that was recorded; ``messages`` has what came."""

    def __init__(self, stream: Stream, messages: list[ProcessingRequest], told: list[str]) -> None:
        super().__init__(stream)
        self.messages = messages
        self.told = told

    def received(self, message: ProcessingRequest) -> None:
        self.messages.append(message)
        super().received(message)

    def half_closed(self) -> None:
        self.told.append("half-closed")
        super().half_closed()

    def gone(self, how: str) -> None:
        self.told.append(how)


def replayed(name: str, size: int) -> tuple[list[list[ProcessingRequest]], list[str], InMemory]:
    """The messages of each call, how the calls ended, and what was answered; the bytes in pieces of ``size``."""
    calls: list[list[ProcessingRequest]] = []
    told: list[str] = []

    def opened(stream: Stream) -> Heard:
        calls.append([])
        return Heard(stream, calls[-1], told)

    served = InMemory(Limits(), methods(lambda: True, opened))
    raw = (FOLDER / f"envoy-{name}.bin").read_bytes()
    for at in range(0, len(raw), size):
        served.connection.data_received(raw[at : at + size])
    return calls, told, served


def kinds(messages: list[ProcessingRequest]) -> list[str | None]:
    """Parts of a body are as many as Envoy read them in."""
    return [kind for kind, _ in groupby(message.WhichOneof("request") for message in messages)]


REQUEST, BODY, TRAILERS = "request_headers", "request_body", "request_trailers"
ANSWERED = {
    "full": ["response_headers", "response_body"],
    "ends": ["response_headers"],
    "buffered": [],
}


@pytest.mark.parametrize("size", [1 << 20, 1000, 7])
@pytest.mark.parametrize("name", ["full", "ends", "buffered"])
async def test_what_envoy_sent(name: str, size: int) -> None:
    calls, told, served = replayed(name, size)
    assert [kinds(messages) for messages in calls] == [
        [REQUEST, *ANSWERED[name]],
        [REQUEST, BODY, *ANSWERED[name]],
        [REQUEST, BODY, *ANSWERED[name]],
    ]
    for messages, length in zip(calls, (0, 300, 20_000), strict=True):
        first = messages[0]
        mode = BUFFERED if name == "buffered" else FULL_DUPLEX
        assert first.protocol_config.request_body_mode == mode
        headers = {one.key: one.raw_value for one in first.request_headers.headers.headers}
        assert headers[":path"] == (b"/v1/completions" if length else b"/v1/models")
        assert first.request_headers.end_of_stream == (not length)
        body = b"".join(one.request_body.body for one in messages)
        assert body == (b'{"prompt": "%s"}' % (b"x" * length) if length else b"")
    assert len(told) == 3
    assert not served.pipe.closed


@pytest.mark.parametrize("name", ["full", "ends", "buffered"])
async def test_what_envoy_is_answered(name: str) -> None:
    """Nothing is refused, and each call has its head."""
    served = replayed(name, 100)[2]
    written = served.frames()
    assert [one for one in written if one.kind == GOAWAY] == []
    assert {one.code for one in written if one.kind == RST_STREAM} <= {ErrorCode.NO_ERROR}
    assert len({one.stream for one in written if one.kind == HEADERS}) == 3
    assert served.shared.incomplete.held == served.shared.waiting.held == 0
