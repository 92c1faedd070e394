"""Decompresses clients' bodies in slices, so that one body does not block the other requests.

aiohttp could do it, too (``auto_decompress``). But it also decompresses the rest of a refused body: a few megabytes
from any client could block the event loop for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.api.encoding import CODINGS, Inflater, Undecodable
from gateway.errors import ClientError, UnsupportedMediaType


def inflating(encodings: Iterable[str]) -> Inflating | None:
    """The decompressor of a body, given each value of its ``Content-Encoding``; None: the body is not compressed.

    Raises UnsupportedMediaType.
    """
    named = ",".join(encodings)
    codings = [coding for name in named.split(",") if (coding := name.strip().lower()) not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise UnsupportedMediaType(
            f"A body cannot be read whose content-encoding is {named[:64]!r}: send it as gzip or deflate, or as it is.",
            param="content-encoding",
        )
    return Inflating(codings[0])


class Inflating:
    """Decompresses one body from ``coding``, and reports failures as the client's errors."""

    def __init__(self, coding: str) -> None:
        self._inflater = Inflater(coding, padded=False)

    def slices(self, data: bytes) -> Iterator[bytes]:
        """As ``Inflater.slices``; the caller should yield to the event loop after each. Raises ClientError."""
        try:
            yield from self._inflater.slices(data)
        except Undecodable as error:
            raise ClientError(f"The body cannot be read: {error}") from None

    def end(self) -> None:
        """The body has ended. Raises ClientError if its compressed data is incomplete."""
        if not self._inflater.whole:
            raise ClientError("The body is cut short of what its content-encoding says.")
