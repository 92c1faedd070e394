"""Sends legs to engines over kept-alive connections. Callers of ``send(leg) -> Answer`` see no transport.

A new connection is made for the leg that needs it, and goes to the pool once its answer is complete. Cancellation
closes the connection: that is how vLLM learns to abort.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from dataclasses import replace

from gateway.core.clock import SystemClock
from gateway.core.pauses import fair_timeout
from gateway.http1.connection import Connection
from gateway.http1.pool import Pool
from gateway.proxy.memory import Memory
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.answer import Answer
from gateway.proxy.upstream.deadlines import FirstLooks, first_look
from gateway.proxy.upstream.legs import Cause, Leg, LegFailed

STALE = 0.25
"""Seconds after sending. If a kept connection ends within them without an answer, it had died idle: the time is enough
for a round trip across a continent. A connection that ends later has delivered the request, which may have killed the
engine."""

SAME_DEATH = 0.05
"""Seconds from making a connection to its end without a byte, right after a kept one ended so, that are one death: the
kernel closes a killed process's sockets one by one, and its listening socket completes handshakes until its turn."""

OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
"""Errors when connecting that say nothing of the engine: the gateway itself has no descriptor, memory or port left."""


class Upstream:
    """Sends legs. ``close`` ends the connections that nothing is on; those under way end with their answers."""

    def __init__(self, timeouts: TimeoutSettings, pool: Pool | None = None, memory: Memory | None = None) -> None:
        """``memory``: of which answers that are read whole have their shares; None: they are not counted."""
        self._timeouts = timeouts
        self._memory = memory
        self._pool = pool or Pool(SystemClock())
        self._first_looks = FirstLooks(first_look(timeouts))

    def close(self) -> None:
        self._pool.close()

    def with_timeouts(self, timeouts: TimeoutSettings) -> Upstream:
        """The same connections under other timeouts."""
        return Upstream(timeouts, self._pool, self._memory)

    async def send(self, leg: Leg) -> Answer:
        """Send ``leg`` and wait for the answer's head.

        A kept connection that turns out to have died idle is replaced once, silently: that the engine closed it says
        nothing of the request. Raises LegFailed.
        """
        timeouts = self._timeouts
        first_looks: FirstLooks | None = self._first_looks
        if leg.head is not None or leg.total is not None:
            timeouts = replace(timeouts, head=leg.head or timeouts.head, total=leg.total or timeouts.total)
            first_looks = None
        kept = self._pool.take(leg.address)
        if kept is None:
            made, answer = await self._connect(leg, timeouts), Answer(leg.endpoint, self._memory)
            await answer.head(leg, made, timeouts, first_looks)
            return answer
        answer, began = Answer(leg.endpoint, self._memory), asyncio.get_running_loop().time()
        try:
            await answer.head(leg, kept, timeouts, first_looks)
            return answer
        except LegFailed:
            if answer.unread is None or asyncio.get_running_loop().time() - began > STALE:
                raise
        try:
            fresh = await self._connect(leg, timeouts)
        except LegFailed as failure:
            if failure.cause is Cause.REFUSED:
                # It was not the connection that died but the engine, perhaps of this very request.
                raise LegFailed(Cause.DIED, leg.endpoint, failure.detail) from failure
            raise
        answer, began = Answer(leg.endpoint, self._memory), asyncio.get_running_loop().time()
        try:
            await answer.head(leg, fresh, timeouts, first_looks)
            return answer
        except LegFailed as failure:
            # One death: the engine sent a byte, so that it was alive when the kept connection ended; or it was dead
            # already when this connection was made, and has not read the request again. Otherwise it may have died of
            # the request twice.
            later = asyncio.get_running_loop().time() - began > SAME_DEATH
            if failure.deaths and answer.unread is False and later:
                failure.deaths = 2
            raise

    async def _connect(self, leg: Leg, timeouts: TimeoutSettings) -> Connection:
        """Raises LegFailed."""
        try:
            async with fair_timeout(timeouts.connect):
                connection = await self._pool.connect(leg.address)
        except TimeoutError as error:
            detail = f"no connection within {timeouts.connect:g} s"
            raise LegFailed(Cause.CONNECT_TIMEOUT, leg.endpoint, detail) from error
        except (OSError, ssl.SSLError) as error:
            cause = Cause.EXHAUSTED if error.errno in OWN_LIMITS else Cause.REFUSED
            raise LegFailed(cause, leg.endpoint, f"{type(error).__name__}: {error}") from error
        if not connection.usable:
            raise LegFailed(Cause.RESET_UNSENT, leg.endpoint, "the connection was closed as soon as it was made")
        return connection
