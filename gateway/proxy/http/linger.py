"""Ends a client's connection whose client may still be sending, so that the last answer arrives whole.

A socket that is closed while bytes of the client are unread sends a reset. The client's kernel then drops what it has
not delivered of the answer, and the gateway's what it has not sent (RFC 9112, section 9.6). So the gateway closes its
half only, reads and drops what comes, and closes the other half when the client has closed its own, or after a bounded
time.
"""

from __future__ import annotations

import asyncio

from gateway.proxy.http.write_progress import taken_of, unwritten

SILENCE = 2.0
"""Seconds in which the client neither sent nor took a byte: it has what it was going to read. Many times a round trip,
and far less than an idle connection is kept. nginx's ``lingering_timeout`` is 5."""

LONGEST = 30.0
"""Seconds, once this process has nothing more to write: nginx's ``lingering_time``."""

MOST = 64 * 1024 * 1024
"""Bytes that are read and dropped: twice the default of ``listen.max_body``, and some 20 ms of the loop's time."""


class Lingering(asyncio.Protocol):
    """Takes ``transport`` over from ``before``, which hears only that the connection is lost. No task waits for it.

    While this process has bytes to write there is no limit but that of ``before`` for a client that takes nothing.
    """

    def __init__(self, transport: asyncio.Transport, before: asyncio.Protocol) -> None:
        self._transport = transport
        self._before = before
        self._dropped = 0
        self._seen = (0, taken_of(transport))
        self._loop = asyncio.get_running_loop()
        transport.set_protocol(self)
        if transport.can_write_eof():  # not over TLS: there the client knows by the answer's framing that it is whole
            transport.write_eof()
        transport.resume_reading()
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(SILENCE, self._look)

    def data_received(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > MOST:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._before.connection_lost(error)

    def _look(self) -> None:
        now, seen = self._loop.time(), (self._dropped, taken_of(self._transport))
        if unwritten(self._transport):
            self._written_at = now
        elif seen == self._seen or now - self._written_at >= LONGEST:
            self._transport.close()
            return
        self._seen = seen
        self._timer = self._loop.call_later(SILENCE, self._look)
