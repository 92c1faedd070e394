"""From the engine to the client: bytes through, observed but not rewritten.

What comes here is committed. From now on a failure ends the stream with an error event, never with another engine.
A part of a stream is observed, framed and written within the call in which the engine's socket brought it.
"""

from __future__ import annotations

from aiohttp import web

from gateway.api.errors import sse_error
from gateway.api.events import EventObserver
from gateway.api.headers import back
from gateway.api.usage import read_usage
from gateway.proxy.client import ClientAnswer
from gateway.proxy.commit import Committed
from gateway.proxy.exchange import Exchange, Phase
from gateway.proxy.legs import HeldAnswer, LegFailed

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
        stream.send(committed.data, last=False)
        await committed.answer.flow(stream.take)
    except LegFailed as failure:
        exchange.broke(failure)
        if committed.answer.encoding:  # nothing can be said in the middle of it
            client.cut()
            return client
        client.send(sse_error(failure.error(), exchange.route.dialect, partial=events.partial), last=True)
    finally:
        client.forget()
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
        self._client = client
        self._events = events
        self._exchange = exchange
        self._idle = idle
        self._stopped = False

    def take(self, data: bytes, last: bool) -> None:
        self._observe(data)
        if last:
            events = self._events
            # Settled before its client can see the end: who asks at once finds what this one took free.
            self._exchange.progressed(events.outputs)
            failed = events.error is not None or events.late_error is not None
            self._exchange.answered(self._answer.status, events.usage, error=failed)
        self.send(data, last)

    def send(self, data: bytes, last: bool) -> None:
        self._client.send(data, last)
        if last:
            return
        self._exchange.progressed(self._events.outputs)
        if self._client.full and not self._stopped:
            self._stopped = True
            self._answer.pause()
            self._client.watch(self._idle, self._resume, lambda: self._answer.abort(ClientGone()))

    def _resume(self) -> None:
        self._stopped = False
        self._answer.resume()


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
