"""Client write progress: bytes buffered in this process, and bytes that the client has acknowledged (TCP_INFO). And
whether bytes of the client have yet to be read."""

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
    """True while bytes wait to be written. Exact once the loop has had a turn since the last ``write``.

    A TLS ``transport`` reports the bytes that wait to be encrypted, and nothing reports the encrypted bytes beneath it.
    But those wait only while the socket is not writable, so a writable socket means that there are none.
    """
    if transport.get_write_buffer_size():
        return True
    return transport.get_extra_info("sslcontext") is not None and not _takes(transport)


def may_wait(transport: asyncio.WriteTransport) -> bool:
    """True while bytes may wait to be written, at any time: over TLS always, where one look is not enough."""
    return bool(transport.get_write_buffer_size()) or transport.get_extra_info("sslcontext") is not None


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether bytes of the client, or its end, wait in the kernel. False where the socket is closed."""
    return _is_ready(transport, select.POLLIN, closed=False)


def _takes(transport: asyncio.WriteTransport) -> bool:
    """Whether the socket is writable, closed or broken."""
    return _is_ready(transport, select.POLLOUT, closed=True)


def _is_ready(transport: asyncio.BaseTransport, event: int, *, closed: bool) -> bool:
    """Whether the socket is ready for ``event`` now; ``closed`` where it is closed."""
    opened = transport.get_extra_info("socket")
    if opened is None:  # uvloop's, once it is closed
        return closed
    look = select.poll()
    try:
        look.register(opened.fileno(), event)
    except (OSError, ValueError):
        return closed
    return bool(look.poll(0))


def taken_of(transport: asyncio.Transport) -> int:
    """A number that changes when the client has received more bytes: those that its kernel has acknowledged, under TLS
    too.

    A kernel with a full receive buffer reopens its window in steps of some kilobytes. So for a client that reads a few
    bytes a second the number changes only with these steps.
    """
    opened = transport.get_extra_info("socket")
    if sys.platform == "linux" and opened is not None:
        with contextlib.suppress(OSError, struct.error):
            found: bytes = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
            return int(_ACKNOWLEDGED.unpack(found)[0])
    return transport.get_write_buffer_size()
