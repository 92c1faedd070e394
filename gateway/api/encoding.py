"""Compressed answers: what a client may be given, and what is seen of it in passing.

Rules: an answer is compressed by the engine or not at all, and passes as it came. A client gets only what can be read
along, so that its stream can be observed: of what it accepts, gzip and deflate are asked for.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""``wbits`` of zlib for each coding that can be read along. ``deflate`` is zlib's format: RFC 9110, section 8.4.1.2."""

PIECE = 4096
"""Bytes that are read at once: what follows a gzip's member is copied for each that ends in them, and a member may be
of 20 bytes."""

Decode = Callable[[bytes], bytes]


class Undecodable(Exception):
    """What came is not what the answer's ``Content-Encoding`` says, or that is no coding that was asked for."""


def acceptable(accepted: Iterable[str]) -> str:
    """The ``Accept-Encoding`` for an engine, given the client's (each value of the header); empty for none."""
    wanted = []
    for choice in ",".join(accepted).split(","):
        name, _, weight = choice.partition(";")
        if name.strip().lower() in _WINDOW and weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            wanted.append(choice.strip())
    return ", ".join(wanted)


def encoding_of(headers: Iterable[tuple[str, str]]) -> str:
    """``Content-Encoding`` in lower case, empty where the body is as it is."""
    value = ",".join(value for name, value in headers if name.lower() == "content-encoding").strip().lower()
    return "" if value == "identity" else value


def decoder(encoding: str) -> Decode:
    """Makes of a stream's parts, in turn, what can be read of them so far. Raises Undecodable, and so does what it
    returns."""
    return _Inflater(encoding).read


def decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """A whole body, read; of one that is longer than ``limit`` bytes, packed or not, the beginning. Raises Undecodable.

    Of what is packed no more than ``limit`` bytes are looked at either: members without content could go on for ever.
    """
    return _Inflater(encoding).read(body[:limit], limit) if encoding else body


class _Inflater:
    """Reads a body part by part. Of gzip, one member after another, with zeros between and behind them: RFC 1952,
    section 2.2, and as gzip itself pads."""

    def __init__(self, encoding: str) -> None:
        """Raises Undecodable."""
        if encoding not in _WINDOW:
            raise Undecodable(f"the content-encoding {encoding[:64]!r} was not asked for")
        self._encoding = encoding
        self._member = zlib.decompressobj(_WINDOW[encoding])

    def read(self, data: bytes, limit: int = sys.maxsize) -> bytes:
        """What can be read of it so far, ``limit`` bytes at most; after that many nothing more may be asked. Raises
        Undecodable."""
        parts = []
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            while piece and limit:
                if self._member.eof and not (piece := piece.lstrip(b"\0")):
                    break
                part = self._inflate(piece, limit)
                limit -= len(part)
                parts.append(part)
                piece = self._member.unused_data
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _inflate(self, data: bytes, limit: int) -> bytes:
        if self._member.eof:
            if self._encoding == "deflate":
                raise Undecodable("its content-encoding is deflate, and it goes on behind its end")
            self._member = zlib.decompressobj(_WINDOW[self._encoding])
        try:
            return self._member.decompress(data, limit)
        except zlib.error as error:
            raise Undecodable(f"its content-encoding is {self._encoding}, and it is not: {error}") from None
