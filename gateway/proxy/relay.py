"""From the engine to the client: bytes through, observed but not rewritten, but for a usage that only we asked for.

What comes here is committed. From now on a failure ends the stream with an error event, never with another engine.
A part of a stream is framed within the call in which the engine's socket brought it, and written at the end of the
loop's turn. What is in it is looked at when there is something to look for: until the first output at once, then some
parts at a time.
"""

from __future__ import annotations

import contextlib

from aiohttp import web

from gateway.api.errors import sse_error
from gateway.api.events import EventObserver
from gateway.api.headers import back
from gateway.api.usage import read_usage
from gateway.proxy.client import ClientAnswer
from gateway.proxy.commit import Committed
from gateway.proxy.exchange import Exchange, Phase
from gateway.proxy.legs import HeldAnswer, LegFailed

UNSEEN = 16
"""Parts of a stream that are observed at once, since each look costs more than a part: as many as tokens are entered
in the ledger at once."""

LARGE = 1024
"""Bytes of a part that is not kept to be observed with others: 16 of them are no more than the observer keeps."""

SLICE = 256 * 1024
"""Bytes of an unstreamed answer that are written at once: what waits for a slow client is not copied as a whole."""


class ClientGone(Exception):
    """The client closed its connection, or took nothing for too long."""


async def relay(committed: Committed, http: web.BaseRequest, exchange: Exchange, *, idle: float) -> web.StreamResponse:
    """Hand ``committed`` to the client. ``idle``: seconds that it may take nothing. Raises ClientGone."""
    if committed.events is not None:
        return await _stream(committed, committed.events, http, exchange, idle)
    usage = read_usage(committed.text, exchange.route.kind) if committed.status == 200 else None
    exchange.answered(committed.status, usage)
    return await _whole(committed.status, committed.headers, committed.data, http, exchange.id, idle)


async def relay_held(held: HeldAnswer, http: web.BaseRequest, exchange: Exchange, *, idle: float) -> web.StreamResponse:
    """An engine's error that no other endpoint bettered, unchanged. Raises ClientGone."""
    exchange.answered(held.status, None, error=True)
    return await _whole(held.status, held.headers, held.body, http, exchange.id, idle)


async def _stream(
    committed: Committed, events: EventObserver, http: web.BaseRequest, exchange: Exchange, idle: float
) -> web.StreamResponse:
    exchange.phase = Phase.STREAMING
    exchange.status = committed.status
    client = ClientAnswer(_open(http), committed.status, _head(committed.headers, exchange.id), length=None)
    stream = _Stream(committed, client, events, exchange, idle)
    try:
        stream.begin(committed.data)
        await committed.answer.flow(stream)
    except LegFailed as failure:
        stream.close()
        exchange.broke(failure)
        if committed.answer.encoding:  # nothing can be said in the middle of it
            client.cut()
            return client
        said = sse_error(failure.error(), exchange.route.dialect, partial=events.partial)
        client.send(stream.held() + said, last=True)
    finally:
        stream.close()
    await _taken(client, idle)
    return client


class _Stream:
    """Writes what comes of ``answer``, and stops it while the client has enough; ends it after ``idle`` seconds in
    which the client took nothing."""

    def __init__(
        self, committed: Committed, client: ClientAnswer, events: EventObserver, exchange: Exchange, idle: float
    ) -> None:
        self._answer = committed.answer
        self._observe = committed.observe
        self._taker = committed.taker
        self._client = client
        self._events = events
        self._exchange = exchange
        self._idle = idle
        self._unseen: list[bytes] = []

    def begin(self, data: bytes) -> None:
        """``data``: what has come so far, and was observed."""
        self._client.attend(self._stop, self._give_up)
        self._client.send(data if self._taker is None else self._taker.feed(data), last=False)
        self._look()

    def part(self, data: bytes) -> None:
        if self._taker is None:
            self._client.part(data)
        elif passing := self._taker.feed(data):
            self._client.part(passing)
        unseen = self._unseen
        unseen.append(data)
        if len(unseen) >= UNSEEN or len(data) > LARGE or not self._events.first_output:
            self._look()

    def end(self, data: bytes) -> None:
        # Settled before its client can see the end: who asks at once finds what this one took free.
        self._unseen.append(data)
        self._look()
        events = self._events
        failed = events.error is not None or events.late_error is not None
        self._exchange.answered(self._answer.status, events.usage, error=failed, apart=events.apart)
        self._client.forget()  # there is nothing left to stop
        if self._taker is not None:
            data = self._taker.feed(data) + self._taker.end()
        self._client.send(data, last=True)

    def held(self) -> bytes:
        """What has come and did not pass, of a stream that broke."""
        return b"" if self._taker is None else self._taker.end()

    def close(self) -> None:
        """It has ended, in whichever way. What came of it is counted."""
        self._client.forget()
        with contextlib.suppress(LegFailed):  # it is known to be broken
            self._look()

    def _look(self) -> None:
        """Observe what has come since the last time. Raises LegFailed where that cannot be read."""
        if self._unseen:
            data = b"".join(self._unseen)
            self._unseen.clear()
            self._observe(data)
        self._exchange.progressed(self._events.outputs)

    def _stop(self) -> None:
        self._answer.pause()
        self._client.watch(self._idle, self._answer.resume, self._give_up)

    def _give_up(self) -> None:
        self._answer.abort(ClientGone())


async def _whole(
    status: int, headers: list[tuple[str, str]], body: bytes, http: web.BaseRequest, request_id: str, idle: float
) -> web.StreamResponse:
    client = ClientAnswer(_open(http), status, _head(headers, request_id), length=len(body))
    if len(body) <= SLICE:
        client.send(body, last=True)
        await _taken(client, idle)
        return client
    for start in range(0, len(body), SLICE):
        client.send(body[start : start + SLICE], last=start + SLICE >= len(body))
        await _taken(client, idle)
    return client


async def _taken(client: ClientAnswer, idle: float) -> None:
    try:
        await client.taken(idle)
    except TimeoutError as error:
        raise ClientGone from error


def _open(http: web.BaseRequest) -> web.BaseRequest:
    if http.transport is None:
        raise ClientGone
    return http


def _head(headers: list[tuple[str, str]], request_id: str) -> list[tuple[str, str]]:
    return [*back(headers), ("x-request-id", request_id)]
