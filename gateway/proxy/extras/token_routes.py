"""Routes of an engine that report which token ids it makes of a body, without serving it.

``.../render`` reports the exact ids, but vLLM has it only with ``--enable-scale-out``. ``/tokenize`` does not know
every field of a body, and does not convert bodies of other routes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.api.body import JsonBody
from gateway.api.routes import Route
from gateway.framework import Kind
from gateway.tokens.tokenizer import ModelTokens

TOKENIZE = "/tokenize"

ABSENT = (403, 404, 405)
"""Statuses of a route that is switched off or is not there."""

ABSENCE = 600.0
"""Seconds for which such a route is not asked again, unless its engine restarts before: a proxy in front of an engine
may change without a restart of the engine."""

RENDERED = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.RESPONSES, Kind.MESSAGES})
TOKENIZED = frozenset({Kind.CHAT, Kind.COMPLETION})
UNTOLD = ("documents", "reasoning_effort")
"""Fields of a chat that vLLM's ``/tokenize`` ignores."""
RENAMED = b"reasoning_content"
"""A message's field that vLLM 0.32 reads as ``reasoning`` on the chat route, and drops in ``/tokenize``. The search
also finds texts with this word: for these ``/tokenize`` is not used either."""


def reporting_routes(route: Route, body: JsonBody, tokens: ModelTokens) -> list[str]:
    """The paths, best first."""
    if route.kind not in RENDERED:
        return []
    paths = [] if _thinks_not(route, body) else [f"{route.path}/render"]
    if route.kind not in TOKENIZED or (route.kind is Kind.CHAT and not tokens.tokenize_agrees):
        return paths
    messages = bytes(body.fields.get("messages", b""))
    words = (RENAMED, *tokens.differing_words)
    if body.fields.keys().isdisjoint(UNTOLD) and not any(word in messages for word in words):
        paths.append(TOKENIZE)
    return paths


def _thinks_not(route: Route, body: JsonBody) -> bool:
    """Whether the body disables thinking on a route where the render path of vLLM 0.32 gives other ids:
    ``/v1/messages`` passes the template the effort that it has for this, and the render path always passes ``none``."""
    if route.kind is not Kind.MESSAGES:
        return False
    try:
        thinking: Any = msgspec.json.decode(body.fields.get("thinking", b"null"))
    except msgspec.DecodeError:
        return True
    return isinstance(thinking, dict) and thinking.get("type") == "disabled"
