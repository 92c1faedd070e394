"""From the engine to the client: bytes through, observed but not rewritten.

What comes here is committed. From now on a failure ends the stream with an error event, never with another engine.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from multidict import CIMultiDict

from gateway.api.errors import sse_error
from gateway.api.events import EventObserver
from gateway.api.headers import back
from gateway.api.usage import read_usage
from gateway.proxy.commit import Committed
from gateway.proxy.exchange import Exchange, Phase
from gateway.proxy.legs import HeldAnswer, LegFailed

SLICE = 256 * 1024
"""Bytes of an unstreamed answer that the client must take within the idle timeout, so that slow is not stalled."""


class ClientGone(Exception):
    """The client closed its connection, or took nothing for too long."""


async def relay(committed: Committed, http: web.BaseRequest, exchange: Exchange, *, idle: float) -> web.StreamResponse:
    """Hand ``committed`` to the client. ``idle``: seconds that it may take nothing. Raises ClientGone."""
    if committed.events is not None:
        return await _stream(committed, committed.events, http, exchange, idle)
    usage = read_usage(committed.data, exchange.route.kind) if committed.status == 200 else None
    exchange.answered(committed.status, usage)
    return await _whole(committed.status, committed.headers, committed.data, http, exchange.id, idle)


async def relay_held(held: HeldAnswer, http: web.BaseRequest, exchange: Exchange, *, idle: float) -> web.StreamResponse:
    """An engine's error that no other endpoint bettered, unchanged. Raises ClientGone."""
    exchange.answered(held.status, None, error=True)
    return await _whole(held.status, held.headers, held.body, http, exchange.id, idle)


async def _stream(
    committed: Committed, events: EventObserver, http: web.BaseRequest, exchange: Exchange, idle: float
) -> web.StreamResponse:
    answer, data = committed.answer, committed.data
    exchange.phase = Phase.STREAMING
    exchange.status = answer.status
    response = web.StreamResponse(status=answer.status, headers=_head(answer.headers, exchange.id))
    if http.version >= (1, 1):
        response.enable_chunked_encoding()
    try:
        await response.prepare(http)
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


async def _whole(
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
