"""A client's request as aiohttp has read it, adapted to what the rest of the gateway sees (``serving.client``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiohttp import web

from gateway.proxy.http.client import ClientAnswer
from gateway.proxy.http.receive import receive
from gateway.proxy.memory import Share
from gateway.proxy.serving.client import ClientGone


class HttpClient:
    """A ``Client`` over one request. ``answer``: what is written to it; None before it has begun."""

    def __init__(self, http: web.BaseRequest) -> None:
        self._http = http
        self.answer: ClientAnswer | None = None

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return list(self._http.headers.items())

    @property
    def remote(self) -> str | None:
        return self._http.remote

    def header(self, name: str) -> str:
        return self._http.headers.get(name, "")

    async def receive(self, *, limit: int, timeout: float, share: Share) -> bytes:
        return await receive(self._http, limit=limit, timeout=timeout, share=share)

    def reply(self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None) -> ClientAnswer:
        if self._http.transport is None:
            raise ClientGone
        self.answer = ClientAnswer(self._http, status, headers, length=length)
        return self.answer
