"""The client's body: read once, within a size and a time."""

from __future__ import annotations

import asyncio

from aiohttp import StreamReader, web

from gateway.core.pauses import fair_timeout
from gateway.errors import BodyTooLarge, ClientError
from gateway.proxy.http.inflate import Inflating, inflating
from gateway.proxy.memory import Share
from gateway.proxy.serving.client import ClientGone


class ReceiveTimeout(ClientError):
    """The client was too slow to send its body."""

    status = 408
    type = "timeout_error"


async def receive(http: web.BaseRequest, *, limit: int, timeout: float, share: Share) -> bytes:
    """The body, unzipped if it came zipped. ``limit``: bytes, unzipped, and on their way. ``timeout``: seconds.
    ``share``: of what is held, to which it is added as it comes; without room for more, no more is read.

    Its server must not unzip it itself (aiohttp's ``auto_decompress``).

    Raises UnsupportedMediaType, BodyTooLarge (before reading where the client tells the length), ReceiveTimeout,
    ClientError (400) for a body that breaks its own framing or encoding, Exhausted, ClientGone where the connection has
    been closed, be it by us: see heads.py.
    """
    inflate = inflating(http.headers.getall("Content-Encoding", ()))
    if http.content_length is not None and http.content_length > limit:
        raise BodyTooLarge(f"The body has {http.content_length} bytes; this gateway takes at most {limit}.")
    expects = http.version >= (1, 1) and http.headers.get("Expect", "").lower() == "100-continue"
    if expects and http.transport is not None:
        # aiohttp's low-level server leaves this to the handler; a client may wait for it before it sends. One that
        # speaks HTTP/1.0 would take it for the answer.
        http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = http.content
    try:
        if inflate is None and content.is_eof():  # it came with its head: nothing is waited for
            body = content.read_nowait()
            if len(body) > limit:
                raise _too_large(limit)
            share.take(len(body))
            return body
        async with fair_timeout(timeout):
            if inflate is None:
                return await _read(content, limit, share)
            return await _unzipped(content, inflate, limit, share)
    except TimeoutError as error:
        raise ReceiveTimeout(f"The body did not arrive within {timeout:g} s.") from error
    except RuntimeError as error:
        if http.transport is not None:
            raise
        raise ClientGone from error  # aiohttp's word for a connection that was closed before it was waited for
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
