"""Compressed answers: what a client may be given, and what is seen of it in passing.

Rules: an answer is compressed by the engine or not at all, and passes as it came. A client gets only what can be read
along, so that its stream can be observed: of what it accepts, gzip and deflate are asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""``wbits`` of zlib for each coding that can be read along. ``deflate`` is zlib's format: RFC 9110, section 8.4.1.2."""

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
    if encoding not in _WINDOW:
        raise Undecodable(f"the content-encoding {encoding[:64]!r} was not asked for")
    inflate = zlib.decompressobj(_WINDOW[encoding])

    def decode(data: bytes) -> bytes:
        try:
            return inflate.decompress(data)
        except zlib.error as error:
            raise Undecodable(f"its content-encoding is {encoding}, and it is not: {error}") from None

    return decode


def decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """A whole body, read; of one that is longer than ``limit`` bytes the beginning. Raises Undecodable."""
    if not encoding:
        return body
    if encoding not in _WINDOW:
        raise Undecodable(f"the content-encoding {encoding[:64]!r} was not asked for")
    try:
        return zlib.decompressobj(_WINDOW[encoding]).decompress(body, limit)
    except zlib.error as error:
        raise Undecodable(f"its content-encoding is {encoding}, and it is not: {error}") from None
