"""What of an answer is on its way: whether a client's connection still holds something in this process that the system
has not taken, and whether the client takes anything."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import sys

_ACKNOWLEDGED = struct.Struct("=120xQ")
"""``tcpi_bytes_acked`` of Linux's ``struct tcp_info`` (linux/tcp.h, since 4.1)."""


def unwritten(transport: asyncio.WriteTransport) -> bool:
    """True while something waits to be written. Exact once the loop has had a turn since the last ``write``.

    Of TLS ``transport`` tells what waits to be encrypted, and nobody what waits beneath it. But that waits only while
    the socket takes nothing, so that a socket which does tells that there is none.
    """
    if transport.get_write_buffer_size():
        return True
    return transport.get_extra_info("sslcontext") is not None and not _takes(transport)


def _takes(transport: asyncio.WriteTransport) -> bool:
    """The socket is writable, or is closed, or broken."""
    look = select.poll()
    try:
        look.register(transport.get_extra_info("socket").fileno(), select.POLLOUT)
    except (OSError, ValueError):
        return True
    return bool(look.poll(0))


def taken_of(transport: asyncio.Transport) -> int:
    """What tells whether the client takes anything: another number if it has since.

    The bytes that its system has acknowledged, under TLS too. A system acknowledges as long as it has room, and says
    that it has again in steps of some kilobytes: a client that reads a few bytes a second shows in these steps only.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, struct.error):
            found: bytes = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
            return int(_ACKNOWLEDGED.unpack(found)[0])
    return transport.get_write_buffer_size()
