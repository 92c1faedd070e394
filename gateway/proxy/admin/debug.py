"""Debug routes of a running gateway: past decisions, and an explanation of where a request would go now.

Routes of the admin listener only: answers name engines and models, and an explanation costs a tokenization. No answer
holds a prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import orjson
from aiohttp import web

from gateway.api.headers import visible
from gateway.api.routes import ROUTES, Route
from gateway.errors import ClientError, GatewayError
from gateway.proxy.admin.answers import LIMIT, answer, refuse_pages, refused
from gateway.proxy.admin.explain import Explainer
from gateway.proxy.http.receive import receive
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.decisions import DecisionRecord, Decisions

MOST = 1000
"""The most decisions in one answer."""

SLICE = 10
"""Decisions that are rendered before the event loop gets a turn. One with a hundred candidates takes 1 to 2 ms."""

GUESSED = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}
"""The default path for a body that has this field."""


class Debug:
    """``explainer``: of the configuration in force. ``max_body``, ``patience``: bytes, and seconds for them to arrive,
    as for clients."""

    def __init__(
        self,
        decisions: Decisions,
        explainer: Callable[[], Explainer],
        memory: Memory,
        max_body: Callable[[], int],
        patience: Callable[[], float],
    ) -> None:
        self._decisions = decisions
        self._explainer = explainer
        self._memory = memory
        self._max_body = max_body
        self._patience = patience
        self._one_at_a_time = asyncio.Lock()

    def routes(self) -> Sequence[web.RouteDef]:
        return web.get("/debug/decisions", self._list), web.post("/debug/explain", self._explain)

    async def _list(self, http: web.Request) -> web.Response:
        try:
            found = self._found(http)
        except ClientError as error:
            return refused(error.status, error.message, error.param)
        clock, parts = self._decisions.clock, []
        for number, record in enumerate(found, start=1):
            parts.append(orjson.Fragment(orjson.dumps(record.to_json_at(clock.monotonic(), clock.wall()))))
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return answer({"decisions": parts})

    def _found(self, http: web.Request) -> list[DecisionRecord]:
        """Newest first. Raises ClientError."""
        asked = http.query
        if unknown := set(asked) - {"request_id", "model", "endpoint", "limit"}:
            raise ClientError(
                f"There is no {min(unknown)[:64]!r} to choose by: request_id, model, endpoint and limit there are.",
                param=min(unknown)[:64],
            )
        limit = asked.get("limit", str(LIMIT))
        if not (limit.isascii() and limit.isdigit() and len(limit) <= len(str(MOST)) and 1 <= int(limit) <= MOST):
            raise ClientError(f"limit must be a number in 1..{MOST}", param="limit")
        request_id, model, endpoint = asked.get("request_id"), asked.get("model"), asked.get("endpoint")
        chosen = (
            record
            for record in self._decisions
            if (request_id is None or record.request_id == request_id)
            and (model is None or record.model == model)
            and (endpoint is None or record.is_at(endpoint))
        )
        return list(islice(chosen, int(limit)))

    async def _explain(self, http: web.Request) -> web.Response:
        refuse_pages(http)
        share = Share(self._memory)
        try:
            raw = await receive(
                http.headers, http.content, limit=self._max_body(), timeout=self._patience(), share=share
            )
            route, body = _asked(http.query.get("path"), raw)
            cookie, tenant = http.headers.get("Cookie", ""), http.query.get("tenant", "")
            async with self._one_at_a_time:  # explanations may not take more CPU than one request at a time
                explanation = await self._explainer().explain(
                    route, body, http.headers.get("Content-Type", ""), visible(http.headers.items()), cookie, tenant
                )
        except GatewayError as error:
            return refused(error.status, error.message, error.param)
        finally:
            share.release()
        return answer(explanation)


def _asked(path: str | None, raw: bytes) -> tuple[Route, bytes]:
    """The route and the body to explain. Raises ClientError.

    With ``path`` given, ``raw`` is a client's body. Else it is a client's body whose fields determine the path, or an
    object with ``path``, ``model`` and ``body``, the last being the client's body.
    """
    if path is not None:
        return _route(path), raw
    try:
        content: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise ClientError("The body is not JSON.") from None  # the library's message may hold some of it
    if not isinstance(content, dict):
        raise ClientError("The body must be an object: a request's, or one with path, model and body.")
    if isinstance(body := content.get("body"), dict):
        if unknown := content.keys() - {"path", "model", "body"}:
            raise ClientError("Beside body there may be path and model.", param=min(unknown)[:64])
        if content.get("model") is not None:
            body["model"] = content["model"]
        try:
            path, content, raw = content.get("path"), body, orjson.dumps(body)
        except TypeError:  # it reads more levels than it writes
            raise ClientError("body is nested too deeply: send it alone, with ?path=.", param="body") from None
    if path is None:
        path = next((GUESSED[name] for name in GUESSED if name in content), None)
    if not isinstance(path, str):
        raise ClientError("Say for which path the body is, such as ?path=/v1/embeddings.", param="path")
    return _route(path), raw


def _route(path: str) -> Route:
    if (route := ROUTES.get(path)) is None:
        raise ClientError(f"{path[:64]!r} is none of the paths that clients may send to.", param="path")
    return route
