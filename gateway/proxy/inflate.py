"""Zipped bodies of clients: unzipped in slices, so that none holds up the others.

aiohttp would unzip them too (``auto_decompress``), and what it reads away of a refused one as well: some seconds in
which nobody is served, for a few megabytes from whoever reaches the port.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from gateway.errors import ClientError, UnsupportedMediaType

GZIP = frozenset({"gzip", "x-gzip"})
"""Two names of one coding: RFC 9110, section 8.4.1.3."""

TAKEN = 8 * 1024
"""Bytes that are unzipped without a turn for others: of empty gzip members, 400, two milliseconds' work."""

MADE = 256 * 1024
"""Bytes that are made without a turn for others: about a millisecond's work."""

_ZLIB_METHOD = 8
"""The lower four bits of zlib's first byte (RFC 1950, section 2.2). No deflate stream's own first byte has them: that
would be a stored block with something in its padding."""


def inflating(encodings: Iterable[str]) -> Inflating | None:
    """What unzips a body, given each value of its ``Content-Encoding``; None where it is as it is.

    Raises UnsupportedMediaType.
    """
    named = ",".join(encodings)
    codings = [coding for name in named.split(",") if (coding := name.strip().lower()) not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in GZIP | {"deflate"}:
        raise UnsupportedMediaType(
            f"A body cannot be read whose content-encoding is {named[:64]!r}: send it as gzip or deflate, or as it is.",
            param="content-encoding",
        )
    return Inflating(codings[0])


class Inflating:
    """One body on its way out of ``coding``: a name in ``GZIP``, or ``deflate`` (zlib's format, or bare)."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._zip: zlib._Decompress | None = None
        self._members = 0

    def slices(self, data: bytes) -> Iterator[bytes]:
        """What ``data``, the body's next bytes, unzip to: parts of ``MADE`` bytes at most, some of them empty. Others
        should have a turn after each. Raises ClientError."""
        for start in range(0, len(data), TAKEN):
            try:
                yield from self._unzip(data[start : start + TAKEN])
            except zlib.error as error:
                raise ClientError(f"The body's content-encoding is {self._coding}, and it is not: {error}") from None

    def end(self) -> None:
        """There is no more. Raises ClientError where there should be. A body of nothing is nothing."""
        if self._zip is not None:
            raise ClientError(f"The body's content-encoding is {self._coding}, and it is cut short.")

    def _unzip(self, rest: bytes) -> Iterator[bytes]:
        made = bytearray()
        while rest or self._zip is not None:
            if self._zip is None:
                self._zip = self._begin(rest)
            room = MADE - len(made)
            part = self._zip.decompress(rest, room)
            made += part
            if self._zip.eof:
                rest, self._zip = self._zip.unused_data, None
            elif not (rest := self._zip.unconsumed_tail) and len(part) < room:
                break  # it wants more; where there was no room it may hold some back
            if len(made) == MADE:
                yield bytes(made)
                made.clear()
        yield bytes(made)

    def _begin(self, data: bytes) -> zlib._Decompress:
        """Gzip may come in members, one behind the other: RFC 1952, section 2.2."""
        self._members += 1
        if self._coding in GZIP:
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        if self._members > 1:
            raise ClientError(f"The body's content-encoding is {self._coding}, and there is something behind its end.")
        return zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == _ZLIB_METHOD else -zlib.MAX_WBITS)
