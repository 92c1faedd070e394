"""Covers: gateway/epp/transport/server.py, gateway/epp/transport/call.py, gateway/epp/transport/health.py,
gateway/epp/transport/connection.py, gateway/epp/transport/frame_reader.py, gateway/epp/transport/frames.py,
gateway/epp/transport/heads.py, gateway/epp/transport/limits.py, gateway/epp/transport/sending.py.

The server with a client that is not ours, grpc.aio's: whole calls, health, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from gateway.epp.messages import HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse
from gateway.epp.stream import Stream
from gateway.epp.transport.health import HealthCheckRequest, HealthCheckResponse
from gateway.epp.transport.limits import Limits
from gateway.epp.transport.server import Server, methods
from gateway.restart.listener import Listener
from tests.support.http2 import Served, body_of, process, requests, serving
from tests.support.wait import eventually

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as made:
        yield made


def channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)


async def echoed(opened: grpc.aio.Channel, body: bytes) -> bytes:
    call = process(opened)()
    for one in requests(body):
        await call.write(one)
    await call.done_writing()
    answers = [answer async for answer in call]
    assert await call.code() == grpc.StatusCode.OK
    assert answers[0].WhichOneof("response") == "request_headers"
    assert answers[-1].request_body.response.body_mutation.streamed_response.end_of_stream
    return body_of(answers)


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 3_000_000])
async def test_a_body_comes_back(served: Served, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with channel(served.port) as opened:
        assert await echoed(opened, body) == body
    assert served.told == ["half-closed"]


async def test_calls_on_one_connection_do_not_disturb_each_other(served: Served) -> None:
    bodies = [bytes([number]) * (number * 3000) for number in range(50)]
    async with channel(served.port) as opened:
        assert await asyncio.gather(*(echoed(opened, body) for body in bodies)) == bodies
        assert len(served.server.connections) == 1
        await eventually(lambda: not served.server.calls)


async def test_a_client_that_cancels_is_told_as_a_reset(served: Served) -> None:
    async with channel(served.port) as opened:
        call = process(opened)()
        await call.write(ProcessingRequest(request_headers=HttpHeaders()))
        await eventually(lambda: served.server.calls)
        call.cancel()
        await eventually(lambda: served.told)
    assert served.told == ["reset 8"]


async def test_a_connection_that_is_lost_ends_its_calls(served: Served) -> None:
    async with channel(served.port) as opened:
        await process(opened)().write(ProcessingRequest(request_headers=HttpHeaders()))
        await eventually(lambda: served.server.calls)
    await eventually(lambda: served.told)
    assert served.told in (["connection lost"], ["reset 8"])


async def check(opened: grpc.aio.Channel, service: str) -> int:
    call = opened.unary_unary(
        "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )
    status: int = (await call(HealthCheckRequest(service=service))).status
    return status


async def test_health_by_service() -> None:
    ready = True
    async with serving(ready=lambda: ready) as served, channel(served.port) as opened:
        names = ["liveness", "readiness", "", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", "x"]
        assert [await check(opened, name) for name in names] == [1, 1, 1, 1, 1, 3]
        ready = False
        assert [await check(opened, name) for name in names] == [1, 2, 2, 2, 2, 3]


async def test_a_port_for_health_alone_knows_no_other_method() -> None:
    listener = Listener(Server(methods(lambda: True)), backlog=10)
    try:
        async with channel(await listener.open("127.0.0.1", 0)) as opened:
            assert await check(opened, "") == 1
            assert (await ended(process(opened)()))[0] == grpc.StatusCode.UNIMPLEMENTED
    finally:
        await listener.close()


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends without an answer. grpc.aio tells it only to one who reads."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        assert await call.read() == grpc.aio.EOF
    return await call.code(), await call.details()


async def test_a_compressed_message_is_refused(served: Served) -> None:
    async with channel(served.port) as opened:
        call = process(opened)(compression=grpc.Compression.Gzip)
        await call.write(ProcessingRequest(request_body=HttpBody(body=bytes(1000))))
        assert await ended(call) == (grpc.StatusCode.UNIMPLEMENTED, "compressed messages are not supported")
    assert served.told == ["refused"]


async def test_a_message_that_is_too_long_is_refused() -> None:
    async with serving(Limits(message=1000)) as served, channel(served.port) as opened:
        call = process(opened)()
        for size in (990, 2000):
            await call.write(ProcessingRequest(request_body=HttpBody(body=bytes(size))))
        assert (await ended(call))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert served.told == ["refused"]


async def test_a_message_that_is_none_is_refused(served: Served) -> None:
    async with channel(served.port) as opened:
        call = opened.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")()
        await call.write(b"\xff\xff")
        assert await ended(call) == (grpc.StatusCode.INTERNAL, "a message that cannot be read")
    assert served.told == ["refused"]


class Failing:
    """A handler with a fault at ``where``."""

    def __init__(self, stream: Stream, where: str, told: list[str]) -> None:
        self.where = where
        self.told = told
        self.at("open")

    def at(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError("a fault of ours")

    def received(self, message: ProcessingRequest) -> None:
        self.at("received")

    def half_closed(self) -> None:
        self.at("half-closed")

    def gone(self, how: str) -> None:
        self.told.append(how)


@pytest.mark.parametrize("where", ["open", "received", "half-closed"])
async def test_a_fault_of_the_handler_ends_its_call_only(where: str, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    async with serving(open_call=lambda stream: Failing(stream, where, told)) as served, channel(served.port) as opened:
        call = process(opened)()
        if where == "received":
            await call.write(ProcessingRequest(request_headers=HttpHeaders()))
        elif where == "half-closed":
            await call.done_writing()
        assert await ended(call) == (grpc.StatusCode.INTERNAL, "the picker failed")
        assert await check(opened, "") == 1
    assert told == ([] if where == "open" else ["failed"])
    assert "a fault of ours" in caplog.text


async def test_a_status_has_its_text(served: Served) -> None:
    def ends(stream: Stream) -> Failing:
        stream.end(9, "100 % of Zürich")
        stream.send(ProcessingResponse())  # dropped
        stream.end(1)
        return Failing(stream, "", [])

    async with serving(open_call=ends) as made, channel(made.port) as opened:
        assert await ended(process(opened)()) == (grpc.StatusCode.FAILED_PRECONDITION, "100 % of Zürich")


async def test_a_drain_ends_each_call_properly_and_asks_for_no_more(served: Served) -> None:
    async with channel(served.port) as opened:
        call = process(opened)()
        await call.write(ProcessingRequest(request_headers=HttpHeaders()))
        await eventually(lambda: served.server.calls)
        served.listener.stop()
        await served.server.drain(0.0)
        assert [answer async for answer in call] == []
        assert await call.code() == grpc.StatusCode.OK
        assert served.told == ["drained"]
        await served.listener.close()
        assert not served.server.connections


async def test_a_drain_waits_for_calls_that_end_by_themselves(served: Served) -> None:
    async with channel(served.port) as opened:
        call = process(opened)()
        await call.write(ProcessingRequest(request_headers=HttpHeaders()))
        await eventually(lambda: served.server.calls)
        draining = asyncio.ensure_future(served.server.drain(60.0))
        for one in requests(b"abc")[1:]:
            await call.write(one)
        await call.done_writing()
        assert body_of([answer async for answer in call]) == b"abc"
        await draining
    assert served.told == ["half-closed"]
