"""Writes answers: JSON bodies and event streams with vLLM's headers, and the faults that break them.

Every byte of an answer goes through here, so that a fault can stop after any of them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
from aiohttp import web

from simulator.faults import Fault, FaultKind

HEADERS = {"Server": "uvicorn", "Vary": "Origin"}
JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream; charset=utf-8"

GARBAGE = b"\x16\x03\x01\x00\xee this is no HTTP at all\r\n\r\n\x00\x00"

PIECE = 512
"""Bytes of an unstreamed body at a time, where it trickles."""

encode_json = msgspec.json.Encoder().encode


async def hang() -> NoReturn:
    """Wait until the client is gone: aiohttp cancels the handler then."""
    while True:
        await asyncio.Event().wait()


def reset(transport: asyncio.Transport | None) -> None:
    """Close a connection at once, with a RST: what was written and not yet sent is lost."""
    if transport is None or transport.is_closing():
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Sink:
    """One request's answer. ``headers`` are added to every head."""

    def __init__(self, request: web.BaseRequest, fault: Fault | None, headers: Mapping[str, str]) -> None:
        self._request = request
        self._fault = fault
        self._headers = {**HEADERS, **headers}
        self._response: web.StreamResponse | None = None
        self._events = 0

    @property
    def opened(self) -> bool:
        """Whether an event stream has begun."""
        return self._response is not None

    async def json(self, body: Any, status: int = 200) -> web.StreamResponse:
        """Answer with a JSON body."""
        return await self.raw(body if isinstance(body, bytes) else encode_json(body), status)

    async def raw(self, body: bytes, status: int = 200, kind: str = JSON_TYPE) -> web.StreamResponse:
        headers = {**self._headers, "Content-Type": kind}
        fault = self._fault
        if fault is None or fault.kind not in (FaultKind.HANG_AFTER, FaultKind.CLOSE_AFTER, FaultKind.TRICKLE):
            return web.Response(body=body, status=status, headers=headers)
        response = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(body))})
        await response.prepare(self._request)
        if fault.kind is FaultKind.TRICKLE:
            for start in range(0, len(body), PIECE):
                await asyncio.sleep(fault.seconds)
                await response.write(body[start : start + PIECE])
        else:
            await response.write(body[: len(body) // 2])
            await self._break(fault)
        return response

    async def empty(self) -> web.StreamResponse:
        """200 without a body or a type."""
        response = web.Response(headers=self._headers)
        # aiohttp would call an empty body bytes.
        response.headers.pop("Content-Type", None)
        return response

    def with_headers(self, headers: Mapping[str, str]) -> Sink:
        """The same sink with more headers."""
        return Sink(self._request, self._fault, {**self._headers, **headers})

    async def open(self) -> None:
        """Begin an event stream: its head goes out now, the first event when there is one."""
        self._response = web.StreamResponse(headers={**self._headers, "Content-Type": EVENTS_TYPE})
        await self._response.prepare(self._request)

    async def event(self, data: bytes) -> None:
        """One event's payload, as ``data:``."""
        await self.write(b"data: " + data + b"\n\n")

    async def named_event(self, name: str, body: Mapping[str, Any]) -> None:
        await self.write(b"event: " + name.encode() + b"\ndata: " + encode_json(body) + b"\n\n")

    async def write(self, event: bytes) -> None:
        """One whole event, framing included."""
        if self._response is None:
            raise AssertionError("open() first")
        fault = self._fault
        if fault is None:
            await self._response.write(event)
            return
        if fault.kind in (FaultKind.HANG_AFTER, FaultKind.CLOSE_AFTER) and self._events >= fault.events:
            await self._break(fault)
        self._events += 1
        if fault.kind is FaultKind.TRICKLE:
            size = max(1, fault.events)
            for start in range(0, len(event), size):
                await self._response.write(event[start : start + size])
                await asyncio.sleep(fault.seconds)
        else:
            await self._response.write(event)

    async def end(self) -> web.StreamResponse:
        if self._response is None:
            raise AssertionError("open() first")
        await self._response.write_eof()
        return self._response

    async def garbage(self) -> NoReturn:
        if self._request.transport is not None:
            self._request.transport.write(GARBAGE)
            self._request.transport.close()
        await hang()

    async def drop(self) -> NoReturn:
        if self._request.transport is not None:
            self._request.transport.close()
        await hang()

    async def _break(self, fault: Fault) -> None:
        if fault.kind is FaultKind.CLOSE_AFTER and self._request.transport is not None:
            # Not a reset: that could take away bytes that were written before.
            self._request.transport.close()
        await hang()
