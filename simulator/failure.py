"""How an error reaches the client: as an answer, or as the end of a stream that has begun.

In a stream vLLM's routes do not agree on it; they are held to the real ones by ``tests/engines/disaggregation``.
"""

from __future__ import annotations

from aiohttp import web

from simulator.call import Call
from simulator.errors import ApiError, internal
from simulator.sink import encode_json

NO_CHUNK = "2 validation errors for ChatCompletionStreamResponse"
"""What ``/v1/messages`` says of any error in a stream: it reads the chat's error event as a chunk, and cannot."""

STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Paths whose answers may be event streams by a field of their JSON."""


async def tell(call: Call, error: ApiError) -> web.StreamResponse:
    """An error in whatever has begun of an answer."""
    path = call.request.path
    if not call.sink.opened:
        body = error.anthropic_body() if path.startswith("/v1/messages") else error.body()
        return await call.sink.json(body, error.status)
    if path.startswith("/v1/responses"):
        # vLLM fails on the error's event, which is none of those that it knows.
        await call.sink.drop()
    return await _end(call, error)


async def begin_with_error(call: Call) -> web.StreamResponse:
    """200 and an error as the first event. Raises ApiError where no stream was asked for."""
    error = internal()
    if not (call.request.path in STREAMED and call.wants_stream):
        raise error
    await call.sink.open()
    return await _end(call, error)


async def _end(call: Call, error: ApiError) -> web.StreamResponse:
    if call.request.path.startswith("/v1/messages"):
        failure = {"type": "internal_error", "message": NO_CHUNK}
        await call.sink.named_event("error", {"type": "error", "error": failure})
    else:
        await call.sink.event(encode_json(error.body()))
        await call.sink.event(b"[DONE]")
    return await call.sink.end()
