"""The endpoints that can go on from a response that an engine keeps (``previous_response_id``), and what a client is
told where none can."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import NoEndpoint
from gateway.framework import Endpoint

DOWN_RETRY = 5.0
"""Seconds in ``Retry-After``: an engine that is only slow is back by then, and one that restarts has lost what it kept
anyway."""

REMEDY = "send the conversation as input instead"
"""What a client can do without the engine that keeps a response."""


def kept_at(url: str, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Those of ``endpoints`` on the engine at ``url``.

    Raises:
        NoEndpoint: it is down; no other engine could serve the request.
    """
    kept = [endpoint for endpoint in endpoints if endpoint.engine.url == url]
    if not any(endpoint.engine.up for endpoint in kept):
        raise NoEndpoint(
            f"The engine that keeps the response named by previous_response_id is down; wait for it, or {REMEDY}.",
            param="previous_response_id",
            retry_after=DOWN_RETRY,
        )
    return kept
