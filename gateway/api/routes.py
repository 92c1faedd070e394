"""The allow-list: the only paths that are forwarded to an engine.

Rules: nothing that changes an engine (loading adapters, sleeping, resetting caches, profiling, ...) is ever here, and a
path that is not here is not passed. GET routes are the gateway's own and belong to ``gateway.proxy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.errors import MethodNotAllowed, NotFound
from gateway.framework import Kind

SHOWN_PATH = 200
"""Characters of an unknown path that an error message repeats: enough to see a typing mistake."""


class Dialect(StrEnum):
    """The API whose error format a route uses."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Route:
    """One ``POST`` path of the engines' API. ``multipart``: its body is a form, not JSON."""

    path: str
    kind: Kind
    dialect: Dialect = Dialect.OPENAI
    multipart: bool = False


ROUTES: Mapping[str, Route] = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", Kind.CHAT),
        Route("/v1/completions", Kind.COMPLETION),
        Route("/v1/embeddings", Kind.EMBEDDING),
        Route("/v1/responses", Kind.RESPONSES),
        Route("/v1/messages", Kind.MESSAGES, Dialect.ANTHROPIC),
        Route("/v1/messages/count_tokens", Kind.TOKENIZE, Dialect.ANTHROPIC),
        Route("/tokenize", Kind.TOKENIZE),
        Route("/detokenize", Kind.DETOKENIZE),
        Route("/v1/audio/transcriptions", Kind.TRANSCRIPTION, multipart=True),
        Route("/rerank", Kind.RERANK),
        Route("/v1/rerank", Kind.RERANK),
        Route("/v2/rerank", Kind.RERANK),
        Route("/score", Kind.SCORE),
        Route("/v1/score", Kind.SCORE),
        Route("/v2/score", Kind.SCORE),
    )
}


def dialect_of(path: str) -> Dialect:
    """The shape of errors on ``path``, known or not: below ``/v1/messages`` clients speak Anthropic's dialect."""
    return Dialect.ANTHROPIC if path == "/v1/messages" or path.startswith("/v1/messages/") else Dialect.OPENAI


def find(method: str, path: str) -> Route:
    """The route of a request line; ``path`` without its query.

    Raises:
        NotFound: the path is not in the allow-list.
        MethodNotAllowed: it is, but only ``POST`` is served there.
    """
    route = ROUTES.get(path)
    if route is None:
        raise NotFound(f"unknown path {path[:SHOWN_PATH]!r}: only inference routes are passed on")
    if method != "POST":
        raise MethodNotAllowed(f"{path} is served with POST only")
    return route
