"""Receives a client's body while it is still coming: once, within a size and a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import StreamReader, web
from multidict import MultiMapping

from gateway.api.inflate import Inflating, inflating
from gateway.core.pauses import fair_timeout
from gateway.errors import BodyTooLarge, ClientError, ReceiveTimeout
from gateway.proxy.memory import Share


async def receive(
    headers: MultiMapping[str],
    body: StreamReader,
    *,
    limit: int,
    timeout: float,
    share: Share,
    wanted: Callable[[], None] | None = None,
) -> bytes:
    """The body of the request with these ``headers``, unzipped if it came zipped. ``limit``: bytes, unzipped, and on
    their way. ``timeout``: seconds. ``share``: of what is held, to which it is added as it comes; without room for
    more, no more is read. ``wanted``: is called once it is clear that it will be read.

    The server must not decompress the body itself (aiohttp's ``auto_decompress``).

    Raises UnsupportedMediaType, BodyTooLarge (before reading where the client tells the length), ReceiveTimeout,
    ClientError (400) for a body that breaks its own framing or encoding, Exhausted.
    """
    encodings = headers.getall("Content-Encoding", ())
    inflate = inflating(encodings) if encodings else None
    length = headers.get("Content-Length")
    if length is not None and int(length) > limit:
        raise BodyTooLarge(f"The body has {length} bytes; this gateway takes at most {limit}.")
    if wanted is not None:
        wanted()
    try:
        async with fair_timeout(timeout):
            if inflate is None:
                return await _read(body, limit, share)
            return await _unzipped(body, inflate, limit, share)
    except TimeoutError as error:
        raise ReceiveTimeout(f"The body did not arrive within {timeout:g} s.") from error
    except web.RequestPayloadError as error:
        raise ClientError(f"The body is not what its headers say: {error}") from error


async def _read(content: StreamReader, limit: int, share: Share) -> bytes:
    parts: list[bytes] = []
    size = 0
    while data := await content.readany():
        size += len(data)
        if size > limit:
            raise _too_large(limit)
        await share.grown(len(data))
        parts.append(data)
    return b"".join(parts)


async def _unzipped(content: StreamReader, inflate: Inflating, limit: int, share: Share) -> bytes:
    parts: list[bytes] = []
    came = size = 0
    while data := await content.readany():
        came += len(data)
        for part in inflate.slices(data):
            size += len(part)
            if max(came, size) > limit:
                raise _too_large(limit)
            if part:
                await share.grown(len(part))
                parts.append(part)
            await asyncio.sleep(0)
    inflate.end()
    return b"".join(parts)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body has more than the {limit} bytes that this gateway takes.")
