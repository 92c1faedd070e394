"""From the engine to the client: bytes through, observed but not rewritten.

Until commit nothing has gone to the client, headers included, and a ``LegFailed`` leaves here for the director to try
again. After it, a failure ends the stream with an error event.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from multidict import CIMultiDict

from gateway.api.errors import sse_error
from gateway.api.events import EventObserver
from gateway.api.headers import back
from gateway.api.usage import read_usage
from gateway.proxy.exchange import Exchange, HeldAnswer, Phase
from gateway.proxy.legs import ENGINE_DEAD, Cause, LegFailed
from gateway.proxy.upstream import Answer

SLICE = 256 * 1024
"""Bytes of an unstreamed answer that the client must take within the idle timeout, so that slow is not stalled."""


class ClientGone(Exception):
    """The client closed its connection, or took nothing for too long."""


async def relay_whole(answer: Answer, http: web.BaseRequest, exchange: Exchange, *, idle: float) -> web.StreamResponse:
    """An unstreamed answer: the client's once it is complete. Raises LegFailed before that, ClientGone after."""
    answer.committed()
    body = await answer.read()
    if answer.status == 500 and ENGINE_DEAD in body:
        exchange.held = HeldAnswer(answer.status, answer.headers, body)
        raise LegFailed(Cause.ENGINE_DEAD, answer.endpoint, "the engine says that it is dead", status=answer.status)
    usage = read_usage(body, exchange.route.kind) if answer.status == 200 else None
    exchange.answered(answer.status, usage)
    return await _write(answer.status, answer.headers, body, http, exchange.id, idle)


async def relay_held(held: HeldAnswer, http: web.BaseRequest, exchange: Exchange, *, idle: float) -> web.StreamResponse:
    """An engine's error that no other endpoint bettered, unchanged."""
    exchange.answered(held.status, None)
    return await _write(held.status, held.headers, held.body, http, exchange.id, idle)


async def relay_stream(answer: Answer, http: web.BaseRequest, exchange: Exchange, *, idle: float) -> web.StreamResponse:
    """A streamed answer: the client's from its first event that is neither a comment nor an error.

    ``idle``: seconds that the client may take nothing. Raises LegFailed before commit, ClientGone after.
    """
    events = EventObserver(exchange.route.kind)
    held: list[bytes] = []
    while not events.committed and events.error is None:
        data = await answer.chunk()
        if not data:
            raise LegFailed(Cause.GARBAGE, answer.endpoint, "a stream that ended without an event")
        held.append(data)
        events.feed(data)
    if events.error is not None and ENGINE_DEAD in events.error:
        raise LegFailed(Cause.ENGINE_DEAD, answer.endpoint, "the engine says that it is dead")

    answer.committed()
    exchange.phase = Phase.STREAMING
    exchange.status = answer.status
    response = web.StreamResponse(status=answer.status, headers=_head(answer.headers, exchange.id))
    if http.version >= (1, 1):
        response.enable_chunked_encoding()
    try:
        await response.prepare(http)
        data = b"".join(held)
        try:
            while data:
                async with asyncio.timeout(idle):
                    await response.write(data)
                exchange.progressed(events.outputs)
                data = await answer.chunk()
                events.feed(data)
            failed = events.error is not None or events.late_error is not None
            exchange.answered(answer.status, events.usage, error=failed)
        except LegFailed as failure:
            exchange.broke(failure)
            end = sse_error(failure.error(), exchange.route.dialect, partial=events.partial)
            async with asyncio.timeout(idle):
                await response.write(end)
        async with asyncio.timeout(idle):
            await response.write_eof()
    except (ConnectionError, TimeoutError) as error:
        raise ClientGone from error
    return response


async def _write(
    status: int, headers: list[tuple[str, str]], body: bytes, http: web.BaseRequest, request_id: str, idle: float
) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=_head(headers, request_id))
    response.content_length = len(body)
    try:
        await response.prepare(http)
        for start in range(0, len(body), SLICE):
            async with asyncio.timeout(idle):
                await response.write(body[start : start + SLICE])
        async with asyncio.timeout(idle):
            await response.write_eof()
    except (ConnectionError, TimeoutError) as error:
        raise ClientGone from error
    return response


def _head(headers: list[tuple[str, str]], request_id: str) -> CIMultiDict[str]:
    head = CIMultiDict(back(headers))
    head["X-Request-Id"] = request_id
    return head
