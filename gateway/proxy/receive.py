"""The client's body: read once, within a size and a time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.errors import BodyTooLarge, ClientError


class ReceiveTimeout(ClientError):
    """The client was too slow to send its body."""

    status = 408
    type = "timeout_error"


async def receive(http: web.BaseRequest, *, limit: int, timeout: float) -> bytes:
    """The body, unzipped if it came zipped. ``limit``: bytes, unzipped. ``timeout``: seconds.

    Raises BodyTooLarge (before reading where the client tells the length), ReceiveTimeout, ClientError (400) for a
    body that breaks its own framing or encoding.
    """
    if http.content_length is not None and http.content_length > limit:
        raise BodyTooLarge(f"The body has {http.content_length} bytes; this gateway takes at most {limit}.")
    expects = http.version >= (1, 1) and http.headers.get("Expect", "").lower() == "100-continue"
    if expects and http.transport is not None:
        # aiohttp's low-level server leaves this to the handler; a client may wait for it before it sends. One that
        # speaks HTTP/1.0 would take it for the answer.
        http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = http.content
    try:
        if content.is_eof():  # it came with its head: nothing is waited for
            body = content.read_nowait()
            if len(body) > limit:
                raise _too_large(limit)
            return body
        parts: list[bytes] = []
        size = 0
        async with asyncio.timeout(timeout):
            while data := await content.readany():
                size += len(data)
                if size > limit:
                    raise _too_large(limit)
                parts.append(data)
    except TimeoutError as error:
        raise ReceiveTimeout(f"The body did not arrive within {timeout:g} s.") from error
    except web.RequestPayloadError as error:
        raise ClientError(f"The body is not what its headers say: {error}") from error
    return b"".join(parts)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body has more than the {limit} bytes that this gateway takes.")
