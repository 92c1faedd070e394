"""Servers and clients that say exactly the bytes that a test wants: for what no well-behaved one does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from tests.support.ports import free_in_a_row

Script = Callable[["Connection"], Awaitable[None]]


@dataclass
class Connection:
    """One accepted connection. ``closed`` is set when the peer has gone."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int

    async def request(self) -> tuple[bytes, bytes]:
        """Read one request: head and body (by its Content-Length). Raises IncompleteReadError when the peer closed."""
        head = await self.head()
        return head, await self.body(head)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def body(self, head: bytes) -> bytes:
        return await self.reader.readexactly(length_in(head))

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def say_apart(self, pieces: Iterable[bytes]) -> None:
        """Say each piece as a segment of its own, as far as the system lets it: whoever reads has its turn between."""
        for piece in pieces:
            await self.say(piece)
            await asyncio.sleep(0)

    async def gone(self) -> None:
        """Wait until the peer closes."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Close with RST, as a killed process does."""
        self.writer.transport.abort()


def length_in(head: bytes) -> int:
    """The Content-Length of a request, 0 for none."""
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


@dataclass(eq=False)
class ScriptedServer:
    """A server that runs ``script`` for each connection; when it returns, the connection is closed. It is a context,
    and may be started again at the same place. ``path``: of the Unix socket at which it listens, instead of at
    ``port``.

    ``connections``: accepted so far; ``left``: how many of them ended.
    """

    script: Script
    port: int = field(default=0, kw_only=True)
    host: str = field(default="127.0.0.1", kw_only=True)
    tls: ssl.SSLContext | None = field(default=None, kw_only=True)
    path: str | None = field(default=None, kw_only=True)
    connections: list[Connection] = field(default_factory=list, init=False)
    left: int = field(default=0, init=False)
    server: asyncio.Server | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"

    async def start(self) -> Self:
        if self.path is not None:
            self.server = await asyncio.start_unix_server(self._serve, self.path, ssl=self.tls)
        else:
            self.port = self.port or free_in_a_row()
            self.server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        return self

    async def stop(self) -> None:
        assert self.server is not None
        self.kill()
        await self.server.wait_closed()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def refuse(self) -> None:
        """Take no connection any more; those that there are go on."""
        assert self.server is not None
        self.server.close()

    def kill(self) -> None:
        """End every connection, and take none any more."""
        self.refuse()
        for connection in self.connections:
            connection.reset()

    async def die(self, within: float = 0.02) -> None:
        """End as a killed process does: its connections are closed one by one, and its listening socket, which goes on
        completing handshakes for nobody until then, as the last. ``within``: seconds that this takes."""
        assert self.server is not None
        listening = [one.dup() for one in self.server.sockets]
        try:
            self.refuse()  # accepts nobody; the duplicate keeps the backlog open
            for connection in list(self.connections):
                connection.reset()
                await asyncio.sleep(0)
            await asyncio.sleep(within)
        finally:
            for one in listening:
                one.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, len(self.connections))
        self.connections.append(connection)
        try:
            await self.script(connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.left += 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def path_in(head: bytes) -> str:
    """The path of a request, without its query."""
    return head.split(b" ", 2)[1].partition(b"?")[0].decode()


def header_in(head: bytes, name: bytes) -> str | None:
    """The value of a request's header; None: it is not there. ``name``: in lower case."""
    for line in head.split(b"\r\n")[1:]:
        known, _, value = line.partition(b":")
        if known.lower() == name:
            return value.strip().decode()
    return None


def answer(body: bytes, *, status: str = "200 OK", content_type: str = "application/json", extra: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n".encode()
    return head + extra + b"\r\n" + body


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    framed = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
    return framed + (b"0\r\n\r\n" if end else b"")


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Reply:
    """An answer as it came. Names of headers are in lower case.

    ``framing``: ``length``, ``chunked``, ``close`` (it ended with the connection) or ``none`` (it can have no body).
    """

    version: str
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    framing: str

    def header(self, name: str) -> str | None:
        """The value of a header that may stand there once at most."""
        values = [value for known, value in self.headers if known == name]
        assert len(values) <= 1, f"{name} is there {len(values)} times"
        return values[0] if values else None


@dataclass
class RawClient:
    """A client's connection, which believes only what HTTP/1.1 lets it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, *, head_only: bool = False) -> Reply:
        """Read one answer, by its own framing. ``head_only``: it answers HEAD.

        Raises AssertionError where it is ambiguous, IncompleteReadError where the connection ends in it.
        """
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        version, status, _ = start.split(" ", 2)
        headers = [(name.lower(), value.strip()) for name, value in (line.split(":", 1) for line in lines)]
        assert not any(set("\r\n\0 ") & set(name) or set("\r\n\0") & set(value) for name, value in headers), head
        reply = Reply(version, int(status), headers, b"", "none")
        length, coding = reply.header("content-length"), reply.header("transfer-encoding")
        assert length is None or coding is None, head
        if head_only or reply.status < 200 or reply.status in (204, 304):
            return reply
        if coding is not None:
            assert (coding, version) == ("chunked", "HTTP/1.1")
            return Reply(version, reply.status, headers, await self._chunks(), "chunked")
        if length is not None:
            assert length.isdigit()
            return Reply(version, reply.status, headers, await self.reader.readexactly(int(length)), "length")
        return Reply(version, reply.status, headers, await self.reader.read(), "close")

    async def ended(self) -> bytes:
        """All that is still said, until the connection ends."""
        said = b""
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(65536):
                said += data
        return said

    def reset(self) -> None:
        self.writer.transport.abort()

    async def _chunks(self) -> bytes:
        parts = []
        while size := int((await self.reader.readuntil(b"\r\n")).removesuffix(b"\r\n"), 16):
            parts.append(await self.reader.readexactly(size))
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n", "no trailers"
        return b"".join(parts)


@contextlib.asynccontextmanager
async def raw_client(url: str, *, takes: int | None = None) -> AsyncIterator[RawClient]:
    """A connection to a gateway. ``takes``: bytes that the system takes for it while it reads nothing, about."""
    plain = socket.socket()
    plain.setblocking(False)
    if takes is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes)
    host, _, port = url.removeprefix("http://").partition(":")
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=plain, limit=takes or 2**18)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def raw_post(
    body: bytes,
    *headers: bytes,
    path: str = "/v1/chat/completions",
    version: str = "HTTP/1.1",
    length: bytes | None = b"",
) -> bytes:
    """A request. ``length``: its Content-Length, where that is not its body's; None for none."""
    lines = [f"POST {path} {version}".encode(), b"Host: gateway", b"Content-Type: application/json"]
    if length is not None:
        lines.append(b"Content-Length: " + (length or b"%d" % len(body)))
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body
