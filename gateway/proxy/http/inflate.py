"""Zipped bodies of clients: unzipped in slices, so that none holds up the others.

aiohttp would unzip them too (``auto_decompress``), and what it reads away of a refused one as well: some seconds in
which nobody is served, for a few megabytes from whoever reaches the port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.api.encoding import CODINGS, Inflater, Undecodable
from gateway.errors import ClientError, UnsupportedMediaType


def inflating(encodings: Iterable[str]) -> Inflating | None:
    """What unzips a body, given each value of its ``Content-Encoding``; None where it is as it is.

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
    """One body on its way out of ``coding``, and whose fault it is where that fails."""

    def __init__(self, coding: str) -> None:
        self._inflater = Inflater(coding, padded=False)

    def slices(self, data: bytes) -> Iterator[bytes]:
        """As ``Inflater``'s; others should have a turn after each. Raises ClientError."""
        try:
            yield from self._inflater.slices(data)
        except Undecodable as error:
            raise ClientError(f"The body cannot be read: {error}") from None

    def end(self) -> None:
        """There is no more. Raises ClientError where there should be."""
        if not self._inflater.whole:
            raise ClientError("The body is cut short of what its content-encoding says.")
