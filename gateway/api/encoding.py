"""Compressed bodies: how they are decompressed, and which codings an answer may have.

Rules: the gateway never compresses an answer: it forwards the engine's bytes. An engine is offered only codings that
the gateway can decompress while they pass, so that it can observe the stream: gzip and deflate, if the client accepts
them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Codings that can be decompressed as they pass; the first two are the same coding: RFC 9110, section 8.4.1.3."""

PIECE = 4096
"""Bytes that are read at a time. A gzip member may have only 20 bytes, and each one copies the bytes after it: 200
empty members take a millisecond."""

MADE = 256 * 1024
"""Bytes that are produced at a time: about a millisecond's work."""

_ZLIB_METHOD = 8
"""The lower four bits of zlib's first byte (RFC 1950, section 2.2). A bare deflate stream never begins with them: it
would be a stored block with non-zero padding."""


class Undecodable(Exception):
    """The body is not what its ``Content-Encoding`` says, or has a coding that was not requested."""


def acceptable(accepted: Iterable[str]) -> str:
    """The ``Accept-Encoding`` for an engine, given the client's (each value of the header); empty for none."""
    wanted = []
    for choice in ",".join(accepted).split(","):
        name, _, weight = choice.partition(";")
        if name.strip().lower() in CODINGS and weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            wanted.append(choice.strip())
    return ", ".join(wanted)


def encoding_of(headers: Iterable[tuple[str, str]]) -> str:
    """``Content-Encoding`` in lower case; empty: the body is not compressed."""
    value = ",".join(value for name, value in headers if name.lower() == "content-encoding").strip().lower()
    return "" if value == "identity" else value


def decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """A whole body, decompressed; if it is longer than ``limit`` bytes, compressed or not, its beginning. Raises
    Undecodable.

    No more than ``limit`` compressed bytes are read either: members without content could go on for ever.
    """
    if not encoding:
        return body
    read = bytearray()
    for part in Inflater(encoding).slices(body[:limit]):
        read += part
        if len(read) >= limit:
            break
    return bytes(read[:limit])


class Inflater:
    """Decompresses one body. gzip: one member after another (RFC 1952, section 2.2). ``padded``: zeros may follow each
    member, as gzip itself allows. deflate: zlib's format (RFC 9110, section 8.4.1.2), or a bare deflate stream, which
    some servers send instead."""

    def __init__(self, encoding: str, *, padded: bool = True) -> None:
        """Raises Undecodable."""
        if encoding not in CODINGS:
            raise Undecodable(f"the content-encoding {encoding[:64]!r} was not asked for")
        self._encoding = encoding
        self._padded = padded
        self._member: zlib._Decompress | None = None
        self._members = 0

    @property
    def whole(self) -> bool:
        """Whether a body may end here. An empty one may."""
        return self._member is None

    def slices(self, data: bytes) -> Iterator[bytes]:
        """Decompress ``data``, the body's next bytes, in parts of at most ``MADE`` bytes. There is at least one part
        for each ``PIECE``; a part may be empty. The iterator must be exhausted before the next call. Raises
        Undecodable."""
        for at in range(0, len(data), PIECE):
            try:
                yield from self._inflate(data[at : at + PIECE])
            except zlib.error as error:
                raise Undecodable(f"its content-encoding is {self._encoding}, and it is not: {error}") from None

    def _inflate(self, rest: bytes) -> Iterator[bytes]:
        made = bytearray()
        while rest or self._member is not None:
            if self._member is None:
                if self._members and self._padded and not (rest := rest.lstrip(b"\0")):
                    break
                self._member = self._begin(rest)
            room = MADE - len(made)
            part = self._member.decompress(rest, room)
            made += part
            if self._member.eof:
                rest, self._member = self._member.unused_data, None
            elif not (rest := self._member.unconsumed_tail) and len(part) < room:
                break  # it needs more input; with full output it may still hold some back
            if len(made) == MADE:
                yield bytes(made)
                made.clear()
        yield bytes(made)

    def _begin(self, data: bytes) -> zlib._Decompress:
        self._members += 1
        if self._encoding != "deflate":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        if self._members > 1:
            raise Undecodable("its content-encoding is deflate, and it goes on behind its end")
        return zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == _ZLIB_METHOD else -zlib.MAX_WBITS)
