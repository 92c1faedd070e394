"""Writes a ``GatewayError`` in the client's dialect. Nothing else in the gateway writes an error body."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from gateway.api.routes import Dialect
from gateway.errors import GatewayError, MethodNotAllowed, Unauthorized

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic names its errors by status; other 4xx are ``invalid_request_error`` and other 5xx ``api_error`` there."""

DEFAULT_RETRY = 1.0
"""Seconds of ``Retry-After`` if a 429 or 503 sets none: a client without it retries at once."""

_ENCODER = msgspec.json.Encoder()


def render(error: GatewayError, dialect: Dialect) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case, with the content type) and body."""
    headers = {"content-type": "application/json"}
    retry_after = error.retry_after
    if retry_after is None and error.status in (429, 503) and error.should_retry is not False:
        retry_after = DEFAULT_RETRY
    if retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after)))
    if error.reason:
        headers["x-kvgate-reason"] = error.reason
        if retry_after is not None:  # OpenAI's clients read this one first
            headers["retry-after-ms"] = str(max(1, math.ceil(retry_after * 1000)))
    if error.should_retry is not None:
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    headers.update(error.headers)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = "POST"
    return error.status, headers, _ENCODER.encode(_shape(error, dialect))


def sse_error(error: GatewayError, dialect: Dialect, *, partial: bool = False) -> bytes:
    """The end of a stream that broke after its first events: an error event, and what closes a stream.

    ``partial``: the engine was cut off inside an event (``EventObserver.partial``), which is ended first, so that the
    error is an event of its own.
    """
    data = _ENCODER.encode(_shape(error, dialect))
    start = b"\n\n" if partial else b""
    if dialect is Dialect.ANTHROPIC:
        return start + b"event: error\ndata: " + data + b"\n\n"
    return start + b"data: " + data + b"\n\ndata: [DONE]\n\n"


def _shape(error: GatewayError, dialect: Dialect) -> dict[str, Any]:
    if dialect is Dialect.ANTHROPIC:
        fallback = "invalid_request_error" if error.status < 500 else "api_error"
        return {
            "type": "error",
            "error": {"type": ANTHROPIC_TYPES.get(error.status, fallback), "message": error.message},
        }
    # ``code`` is the status as a number, as in vLLM: errors of the gateway and of engines have the same shape. Limits
    # are what clients of OpenAI's tell apart by its words.
    code = error.status if error.code is None else error.code
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": code}}
