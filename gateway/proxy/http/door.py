"""A client's request as aiohttp has read it, adapted once to what the rest of the gateway sees (``serving.client``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from aiohttp import StreamReader
from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from gateway.proxy.http.receive import receive
from gateway.proxy.http.reply import HttpReply, Writable
from gateway.proxy.memory import Share
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.stages import Stages
from gateway.tenants.identity import ANYONE


class Connected(Writable, Protocol):
    """What a request needs of its client's connection. ``transport``: None once the connection is lost.
    ``leaving``: its next answer is its last. ``may_be_large``: its heads must be counted. ``stages``: of its loop."""

    transport: asyncio.Transport | None
    leaving: bool
    may_be_large: bool
    stages: Stages

    @property
    def peername(self) -> Any:
        """The client's address, as its socket has it; None once the connection is lost."""

    def arrived(self, body: StreamReader, limit: int) -> bytes | None:
        """All of ``body`` if it came with its head, is not broken and has at most ``limit`` bytes: None otherwise."""


class HttpClient:
    """A ``Client`` over one request.

    ``path``: as it was sent, without the query: a rule of a proxy in front may not match /v1/%63hat, and here that is
    no route either. ``answer``: what is written to it; None before it has begun. ``caller``, ``headers``: until the
    server has found who sends it, anyone, and all of them.
    """

    __slots__ = ("answer", "body", "caller", "connection", "head", "headers", "method", "path", "stages")

    def __init__(self, head: RawRequestMessage, body: StreamReader, connection: Connected) -> None:
        self.head = head
        self.body = body
        self.connection = connection
        self.stages = connection.stages
        self.method = head.method
        self.path = head.path.partition("?")[0] if head.path.startswith("/") else head.url.raw_path
        self.headers = list(head.headers.items())
        self.answer: HttpReply | None = None
        self.caller = ANYONE

    @property
    def remote(self) -> str | None:
        peer = self.connection.peername
        return str(peer[0]) if isinstance(peer, list | tuple) else peer

    def header(self, name: str) -> str:
        return self.head.headers.get(name, "")

    async def receive(self, *, limit: int, timeout: float, share: Share) -> bytes:
        """As ``receive``; ClientGone where the connection has been closed, be it by us: see heads.py. For a body that
        came with its head nothing is waited for, not even room: it is counted at once or refused."""
        headers = self.head.headers
        if "Content-Encoding" not in headers and (data := self.connection.arrived(self.body, limit)) is not None:
            if "Expect" in headers:
                self._expected()
            share.take(len(data))
            return data
        wanted = self._expected if "Expect" in headers else None
        try:
            return await receive(headers, self.body, limit=limit, timeout=timeout, share=share, wanted=wanted)
        except RuntimeError as error:
            if self.connection.transport is not None:
                raise
            raise ClientGone from error  # aiohttp raises this if the connection was closed before the read

    def _expected(self) -> None:
        """A client may wait for this before it sends. One that speaks HTTP/1.0 would take it for the answer."""
        head, transport = self.head, self.connection.transport
        if transport is not None and head.version >= HttpVersion11 and head.headers["Expect"].lower() == "100-continue":
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def reply(
        self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None, close: bool = False
    ) -> HttpReply:
        """Begin the answer. ``length``: bytes of its body; None: not known. ``close``: the connection ends with it.

        A body that comes in chunks is its connection's last: aiohttp 3.14 takes the last line of its trailers for the
        first header of the next request, which behind a proxy is another client's. Raises ClientGone.
        """
        connection, head = self.connection, self.head
        transport = connection.transport
        if transport is None:
            raise ClientGone
        keep = not (close or head.should_close or head.chunked or connection.leaving)
        minor = 0 if head.version == HttpVersion10 else 1
        self.answer = HttpReply(connection, transport, status, headers, length=length, minor=minor, keep_alive=keep)
        return self.answer

    def say(self, status: int, headers: Iterable[tuple[str, str]], body: bytes, *, close: bool = False) -> None:
        """Answer with all of a small body at once. Raises ClientGone."""
        reply = self.reply(status, headers, length=len(body), close=close)
        reply.send(b"" if self.method == "HEAD" else body, last=True)

    def abort(self) -> None:
        """Close the connection at once; whatever is not written is lost."""
        self.answer = None
        if self.connection.transport is not None:
            self.connection.transport.abort()
