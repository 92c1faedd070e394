"""Compressed bodies: what is made of them, and which of answers a client may be given.

Rules: an answer is compressed by the engine or not at all, and passes as it came. A client gets only what can be read
along, so that its stream can be observed: of what it accepts, gzip and deflate are asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""That can be read along; the first two are names of one: RFC 9110, section 8.4.1.3."""

PIECE = 4096
"""Bytes that are read at once, since of a gzip's members, which may be of 20 bytes, each copies what is behind it: of
empty ones, 200, a millisecond's work."""

MADE = 256 * 1024
"""Bytes that are made at once: about a millisecond's work."""

_ZLIB_METHOD = 8
"""The lower four bits of zlib's first byte (RFC 1950, section 2.2). No deflate stream's own first byte has them: that
would be a stored block with something in its padding."""


class Undecodable(Exception):
    """What came is not what the ``Content-Encoding`` says, or that is no coding that was asked for."""


def acceptable(accepted: Iterable[str]) -> str:
    """The ``Accept-Encoding`` for an engine, given the client's (each value of the header); empty for none."""
    wanted = []
    for choice in ",".join(accepted).split(","):
        name, _, weight = choice.partition(";")
        if name.strip().lower() in CODINGS and weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            wanted.append(choice.strip())
    return ", ".join(wanted)


def encoding_of(headers: Iterable[tuple[str, str]]) -> str:
    """``Content-Encoding`` in lower case, empty where the body is as it is."""
    value = ",".join(value for name, value in headers if name.lower() == "content-encoding").strip().lower()
    return "" if value == "identity" else value


def decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """A whole body, read; of one that is longer than ``limit`` bytes, packed or not, the beginning. Raises Undecodable.

    Of what is packed no more than ``limit`` bytes are looked at either: members without content could go on for ever.
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
    """One body on its way out of its coding: of gzip, one member after another (RFC 1952, section 2.2), with zeros
    between and behind them where it may be ``padded``, as gzip itself pads; of deflate, zlib's format (RFC 9110,
    section 8.4.1.2) or what some take it for, the bare stream."""

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
        """What has come so far ends where a body may. One of nothing is nothing."""
        return self._member is None

    def slices(self, data: bytes) -> Iterator[bytes]:
        """What can be read of ``data``, the body's next bytes: parts of ``MADE`` bytes at most, some of them empty, one
        for each ``PIECE`` at least. To the end, or nothing more may be asked. Raises Undecodable."""
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
                break  # it wants more; where there was no room it may hold some back
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
