"""Admin routes of tenants and keys. Unlike the others they need a token: who makes a key may use every model.

A key that is made is in the one answer that tells it, and nowhere else.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import orjson
from aiohttp import web

from gateway.config.decode import decode
from gateway.config.origin import Origin
from gateway.errors import ClientError, ConfigError, GatewayError
from gateway.proxy.admin.answers import answer, refuse_pages, refused
from gateway.proxy.http.receive import receive
from gateway.proxy.memory import Memory, Share
from gateway.tenants.management import Management, NewKey
from gateway.tenants.sender import given_key
from gateway.tenants.settings import TenantSettings

MAX_BODY = 65536
"""Bytes of a body: a tenant with a thousand models."""

CLOSED = (
    "The admin API of keys and tenants is closed: set tenants.admin_token, best as ${NAME}, and send it as a Bearer"
)

T = TypeVar("T")
Verb = Callable[[Management, web.Request], Awaitable[web.Response]]


class KeyRoutes:
    """``token``: what has to be sent; None: nobody may. ``management``: of the configuration in force. ``patience``:
    seconds for a body to arrive. ``written``: awaited after a change, so that it is in force when it is answered.
    ``used``: by a tenant's name, its limits and what is left of them, its budget and its usage, in the form of
    ``GET /v1/usage``; None: the tenant is not in force."""

    def __init__(
        self,
        token: Callable[[], str | None],
        management: Callable[[], Management],
        memory: Memory,
        patience: Callable[[], float],
        written: Callable[[], Awaitable[None]],
        used: Callable[[str], dict[str, Any] | None],
    ) -> None:
        self._token = token
        self._management = management
        self._memory = memory
        self._patience = patience
        self._written = written
        self._used = used

    def routes(self) -> Sequence[web.RouteDef]:
        return (
            web.get("/keys", partial(self._answer, self._keys)),
            web.post("/keys", partial(self._answer, self._add)),
            web.delete("/keys/{id}", partial(self._answer, self._revoke)),
            web.post("/keys/{id}/rotate", partial(self._answer, self._rotate)),
            web.get("/tenants", partial(self._answer, self._tenants)),
            web.get("/tenants/{name}", partial(self._answer, self._tenant)),
            web.put("/tenants/{name}", partial(self._answer, self._put_tenant)),
        )

    async def _answer(self, verb: Verb, http: web.Request) -> web.Response:
        refuse_pages(http)
        token = self._token()
        if token is None:
            return refused(403, f"{CLOSED}.")
        if not hmac.compare_digest(given_key(http.headers).encode("utf-8", "surrogateescape"), token.encode()):
            return refused(401, "A valid token is needed: send tenants.admin_token as 'Authorization: Bearer TOKEN'.")
        try:
            return await verb(self._management(), http)
        except GatewayError as error:
            return refused(400 if isinstance(error, ConfigError) else error.status, error.message, error.param)

    async def _keys(self, management: Management, http: web.Request) -> web.Response:
        return answer({"keys": await management.keys()})

    async def _add(self, management: Management, http: web.Request) -> web.Response:
        made = await management.add(_settings(NewKey, await self._body(http)))
        await self._written()
        return answer(made, 201)

    async def _revoke(self, management: Management, http: web.Request) -> web.Response:
        revoked = await management.revoke(http.match_info["id"])
        await self._written()
        return answer(revoked)

    async def _rotate(self, management: Management, http: web.Request) -> web.Response:
        body = await self._body(http)
        keep = body.pop("keep", None)
        if body or not isinstance(keep, str | None):
            raise ClientError("The body may have keep, a span such as 12h, and nothing else.", param="keep")
        made = await management.rotate(http.match_info["id"], keep)
        await self._written()
        return answer(made, 201)

    async def _tenants(self, management: Management, http: web.Request) -> web.Response:
        return answer({"tenants": await management.tenants()})

    async def _tenant(self, management: Management, http: web.Request) -> web.Response:
        name = http.match_info["name"]
        return answer({**await management.tenant(name), "used": self._used(name)})

    async def _put_tenant(self, management: Management, http: web.Request) -> web.Response:
        body = await self._body(http)
        name = http.match_info["name"]
        if body.setdefault("name", name) != name:
            raise ClientError("name is another one than in the path.", param="name")
        settings = await management.put_tenant(_settings(TenantSettings, body))
        await self._written()
        return answer(settings)

    async def _body(self, http: web.Request) -> dict[str, Any]:
        """An object; an empty body is an empty one. Raises ClientError."""
        share = Share(self._memory)
        try:
            raw = await receive(http.headers, http.content, limit=MAX_BODY, timeout=self._patience(), share=share)
        finally:
            share.release()
        try:
            body: Any = orjson.loads(raw or b"{}")
        except orjson.JSONDecodeError:
            raise ClientError("The body is not JSON.") from None
        if not isinstance(body, dict):
            raise ClientError("The body must be an object.")
        return body


def _settings(kind: type[T], body: dict[str, Any]) -> T:
    """Raises ConfigError, whose text begins with the culprit."""
    return decode(kind, body, (), Origin())
