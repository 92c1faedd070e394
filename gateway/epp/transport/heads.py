"""The headers of calls: HPACK, and what HTTP/2 demands of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpack import Decoder, OversizedHeaderListError
from hpack.exceptions import HPACKError
from hpack.hpack import encode_integer

from gateway.epp.transport.frames import ConnectionFault, ErrorCode

PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
OF_HTTP_1 = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})

Headers = Mapping[bytes, bytes]
"""By name; of several of a name the last."""

MAX_KNOWN = 64
"""Blocks that are remembered, 32 KB each at most: those of a gateway differ by who asks it, if at all."""


class HeadDecoder:
    """Of one connection. The table that blocks refer to has the 4,096 bytes with which HTTP/2 begins, and no more;
    Envoy uses it before it has seen our SETTINGS.

    From the second call on, Envoy's blocks are the same bytes and change nothing in the table. They are read once:
    unpacking them is a third of what a call costs.
    """

    def __init__(self, limit: int) -> None:
        """``limit``: bytes of a call's headers when unpacked, as RFC 9113 counts them (section 6.5.2)."""
        self._decoder = Decoder(max_header_list_size=limit)
        self._known: dict[bytes, Headers | None] = {}

    def decode(self, block: bytes) -> Headers | None:
        """Also of a call that is refused, or the table would be wrong. None where they break a rule of HTTP/2: their
        stream is to be reset. Raises ConnectionFault where nothing can be read on this connection any more."""
        if block in self._known:
            return self._known[block]
        try:
            headers = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers too large when unpacked") from error
        except HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "headers that are no HPACK") from error
        found = checked(headers)
        if not leaves_table(block) or len(self._known) >= MAX_KNOWN:
            self._known.clear()
        else:
            self._known[block] = found
        return found


def leaves_table(block: bytes) -> bool:
    """Whether no header of ``block`` enters the table, and its size stays (RFC 7541, section 6). False also where that
    is not seen at once: where a number takes more than one byte."""
    at, end = 0, len(block)
    while at < end:
        first = block[at]
        at += 1
        if first >= 0x80:  # both are in the table
            if first == 0xFF:
                return False
        elif first < 0x20:  # a value that is not to enter it, and perhaps a name
            if first & 0x0F == 0x0F:
                return False
            for _ in range(1 if first & 0x0F else 2):
                if at >= end or block[at] & 0x7F == 0x7F:
                    return False
                at += 1 + (block[at] & 0x7F)
        else:
            return False
    return True


def checked(headers: Iterable[tuple[bytes, bytes]]) -> Headers | None:
    """None if they are malformed (RFC 9113, sections 8.2 and 8.3)."""
    found: dict[bytes, bytes] = {}
    regular = False
    for name, value in headers:
        if name[:1] == b":":
            if regular or name in found or name not in PSEUDO:
                return None
        else:
            regular = True
            if not name or name in OF_HTTP_1 or name != name.lower() or (name == b"te" and value != b"trailers"):
                return None
        found[name] = value
    return found


def is_request(headers: Headers) -> bool:
    return bool(headers.get(b":method") and headers.get(b":scheme") and headers.get(b":path"))


def literal(name: bytes, value: bytes) -> bytes:
    """A header of ours; it changes no table, so that blocks can be made once and used on any connection."""
    return b"\0" + bytes(encode_integer(len(name), 7)) + name + bytes(encode_integer(len(value), 7)) + value
