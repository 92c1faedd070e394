"""A client of a running gateway's admin API of tenants and keys."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from gateway.errors import ConfigError
from gateway.tenants.changes import StoreFailed

TIMEOUT = 30.0
"""Seconds for an answer: the gateway may wait for its Valkey meanwhile."""


class Remote:
    """``url``: of the admin listener. What the gateway refuses is raised as StoreFailed, with its words."""

    def __init__(self, url: str, token: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url: {url!r} must begin with http:// or https://")
        self._url = url.rstrip("/")
        self._token = token

    async def keys(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._ask("GET", "/keys"))["keys"]
        return found

    async def add(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return await self._ask("POST", "/keys", wanted)

    async def revoke(self, key_id: str) -> dict[str, Any]:
        return await self._ask("DELETE", f"/keys/{quote(key_id, safe='')}")

    async def rotate(self, key_id: str, keep: str | None) -> dict[str, Any]:
        return await self._ask("POST", f"/keys/{quote(key_id, safe='')}/rotate", {} if keep is None else {"keep": keep})

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT, headers=headers) as client:
                reply = await client.request(method, self._url + path, json=body)
            content = reply.json()
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise StoreFailed(f"the gateway at {self._url} does not answer: {why}") from error
        except ValueError as error:
            raise StoreFailed(f"what answers at {self._url} is no admin listener of kvgate") from error
        if not isinstance(content, dict) or (reply.is_error and "error" not in content):
            raise StoreFailed(f"what answers at {self._url} is no admin listener of kvgate")
        if reply.is_error:
            raise StoreFailed(str(content["error"]["message"]))
        return content
