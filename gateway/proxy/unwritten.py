"""Whether a client's connection still holds something in this process, which the system has not taken."""

from __future__ import annotations

import asyncio
import select


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
