"""Checks a request's head before the request is handled: its length, its version, and how its body is framed.

aiohttp bounds one header field, and accepts 128 of them. It also accepts requests that a proxy in front may read as
another request. A faulty request is answered, and its connection is closed.
"""

from __future__ import annotations

from typing import Any, cast

from aiohttp import StreamReader, http_exceptions
from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11, RawRequestMessage

from gateway.errors import ClientError, GatewayError
from gateway.proxy.http.client import ClientConnection

MAX_HEAD = 65536
"""Bytes of a whole head: session cookies and trace baggage fit, an attack on memory does not."""


class HeadTooLarge(ClientError):
    status = 431


class CodingNotImplemented(ClientError):
    """RFC 9112 section 6.1: a server that does not know a transfer coding should answer 501."""

    status = 501


class VersionNotSupported(ClientError):
    status = 505


TOO_LARGE = f"The request's head has more than {MAX_HEAD} bytes: send fewer or shorter headers."


def fault_of(message: RawRequestMessage, *, may_be_large: bool) -> GatewayError | None:
    """Why a request whose head is complete is refused; None where it is not. ``may_be_large``: its head is counted."""
    if message.version not in (HttpVersion10, HttpVersion11):
        return VersionNotSupported("This listener speaks HTTP/1.1 and HTTP/1.0 only.")
    if "#" in message.path:
        return ClientError("The request's target has a fragment, which none may have (RFC 9112, section 3.2).")
    if "Transfer-Encoding" in message.headers:
        if message.version != HttpVersion11:
            return ClientError("Transfer-Encoding is no part of HTTP/1.0 (RFC 9112, section 6.1): send Content-Length.")
        if [coding.strip(" \t").lower() for coding in message.headers.getall("Transfer-Encoding")] != ["chunked"]:
            return CodingNotImplemented("Transfer-Encoding: only 'chunked' is taken; send no other transfer coding.")
    if may_be_large and _size(message) > MAX_HEAD:
        return HeadTooLarge(TOO_LARGE)
    return None


def _size(message: RawRequestMessage) -> int:
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)


def answered_in(message: RawRequestMessage) -> HttpVersion:
    """The version of the answer to a request with a fault: one that there is."""
    return HttpVersion10 if message.version == HttpVersion10 else HttpVersion11


class Unfinished:
    """Counts what comes on a connection and is neither in a head that is complete nor in a body: the beginning of a
    head, or a body's trailers and the extensions of its chunks."""

    __slots__ = ("_body", "_size", "_taken")

    def __init__(self) -> None:
        self._body: StreamReader | None = None
        self._size = self._taken = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size

    @property
    def in_head(self) -> bool:
        """What comes now belongs to a head."""
        return self._body is None

    def head_came(self, body: StreamReader) -> None:
        """The head of the request with ``body`` is complete. What came behind it in the same call is not counted."""
        self._size, self._taken = 0, body.total_bytes
        self._body = None if body.is_eof() else body

    def came(self, size: int) -> bool:
        """``size`` bytes came and completed no head; false: there are more than ``MAX_HEAD`` of them by now."""
        body = self._body
        if body is not None and (body.is_eof() or body.total_bytes != self._taken):
            self._size, self._taken = 0, body.total_bytes
            if body.is_eof():
                self._body = None
            return True
        self._size += size
        return self._size <= MAX_HEAD

    def end(self) -> None:
        """The connection has ended."""
        self._body = None


class Refusing:
    """Stands in the place of aiohttp's parser once a head is too large, or no HTTP: what that has kept of it is let go,
    and what comes is dropped. ``refused``: an error waits for its turn already, and one is enough."""

    def __init__(self, *, refused: bool) -> None:
        self._refused = refused

    def feed_data(self, data: bytes) -> tuple[tuple[()], bool, bytes]:
        """Raises HttpProcessingError, once: its connection then answers it as it answers what is no HTTP."""
        if not self._refused:
            self._refused = True
            raise http_exceptions.HttpProcessingError(code=HeadTooLarge.status, message=TOO_LARGE)
        return (), False, b""

    def feed_eof(self) -> None: ...

    def message_consumed(self) -> None: ...

    def pause_reading(self) -> None: ...


class GuardedConnection(ClientConnection):
    """A connection that keeps no more of a head than ``MAX_HEAD`` and what comes in one call: with 431 for what becomes
    larger, and without an answer where it is a body's trailers. It leans on aiohttp for three things (its test holds
    them): ``_request_count`` counts what went into ``_messages``; the parser is ``_parser`` and nothing else keeps what
    came; and an HttpProcessingError of it is answered by ``handle_error``.
    """

    __slots__ = ("_unfinished", "may_be_large")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unfinished = Unfinished()
        self.may_be_large = False
        """More than ``MAX_HEAD`` bytes have come at once: from now on each head of this connection is counted."""

    def data_received(self, data: bytes) -> None:
        count = self._request_count
        if len(data) + self._unfinished.size > MAX_HEAD:
            self.may_be_large = True
        super().data_received(data)
        if self._request_count != count:
            message, body = self._messages[-1]
            self._unfinished.head_came(body)
            if not isinstance(message, RawRequestMessage):  # it would tell of the same error with all that comes
                self._parser = cast(Any, Refusing(refused=True))
        elif self._upgraded or self._reading_paused or self._buffer_paused:
            return  # what came was not parsed, and no more of it comes for now
        elif isinstance(cast(object, self._parser), Refusing):
            return
        elif not self._unfinished.came(len(data)):
            if self._unfinished.in_head:
                self._parser = cast(Any, Refusing(refused=False))
                super().data_received(b"")
            else:
                self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._unfinished.end()
        super().connection_lost(exc)
