"""Checks a request's head before the request is handled: its length, its version, and how its body is framed.

aiohttp bounds one header field, and accepts 128 of them. It also accepts requests that a proxy in front may read as
another request. A faulty request is answered, and its connection is closed.
"""

from __future__ import annotations

from aiohttp import StreamReader, http_exceptions, web
from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from gateway.errors import ClientError, GatewayError

MAX_HEAD = 65536
"""The most bytes of a whole head: enough for session cookies and trace baggage, and a bound on memory."""


SHOWN_REASON = 200
"""The most characters of a parser's error message that are sent back: it may hold the request line."""


class HeadTooLarge(ClientError):
    status = 431


class CodingNotImplemented(ClientError):
    """RFC 9112 section 6.1: a server that does not know a transfer coding should answer 501."""

    status = 501


class VersionNotSupported(ClientError):
    status = 505


TOO_LARGE = f"The request's head has more than {MAX_HEAD} bytes: send fewer or shorter headers."


def fault_of(message: RawRequestMessage, *, may_be_large: bool) -> GatewayError | None:
    """Why a request with a complete head is refused; None: it is not. ``may_be_large``: its head has to be counted."""
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


def reason_of(error: http_exceptions.HttpProcessingError) -> str:
    """What a parser says of what is no HTTP, without the client's bytes, which follow in further lines."""
    return error.message.strip().partition("\n")[0].rstrip(":")[:SHOWN_REASON]


def _size(message: RawRequestMessage) -> int:
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)


class Unfinished:
    """Counts the bytes on a connection that are neither in a complete head nor in a body: the beginning of a head, or a
    body's trailers and chunk extensions."""

    __slots__ = ("_taken", "body", "size")

    def __init__(self) -> None:
        self._taken = 0
        self.body: StreamReader | None = None
        """The one that is still coming; None: the next bytes belong to a head."""
        self.size = 0
        """Bytes so far."""

    def head_came(self, body: StreamReader) -> None:
        """The head of a request is complete, and its ``body`` is not. Bytes after it in the same call are not
        counted."""
        self.size, self._taken = 0, body.total_bytes
        self.body = body

    def came(self, size: int) -> bool:
        """``size`` bytes came and completed no head; false: there are more than ``MAX_HEAD`` of them by now."""
        body = self.body
        if body is not None and (body.is_eof() or body.total_bytes != self._taken):
            self.size, self._taken = 0, body.total_bytes
            if body.is_eof():
                self.body = None
            return True
        self.size += size
        return self.size <= MAX_HEAD

    def broke(self, error: http_exceptions.HttpProcessingError) -> None:
        """What came is neither a head nor more of a body. Who waits for the rest of a body is told, which aiohttp does
        not do: it would wait until it is too late for it."""
        if self.body is not None and not self.body.is_eof():
            self.body.set_exception(web.RequestPayloadError(reason_of(error)))

    def end(self) -> None:
        """The connection has ended."""
        self.body = None


class Refusing:
    """Replaces aiohttp's parser once a head is too large or invalid. The old parser's buffer is freed, and further
    bytes are dropped. ``refused``: an error is queued already, and no second one is raised."""

    def __init__(self, *, refused: bool) -> None:
        self._refused = refused

    def feed_data(self, data: bytes) -> tuple[tuple[()], bool, bytes]:
        """Raises HttpProcessingError, once: the connection then answers as it does to invalid HTTP."""
        if not self._refused:
            self._refused = True
            raise http_exceptions.HttpProcessingError(code=HeadTooLarge.status, message=TOO_LARGE)
        return (), False, b""

    def feed_eof(self) -> None: ...

    def message_consumed(self) -> None: ...

    def pause_reading(self) -> None: ...
