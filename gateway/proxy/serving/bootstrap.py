"""Asks the bootstrap server beside a prefill engine who it is. Seldom, and so with a client off the shelf."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

MAX_SIZE = 1024 * 1024
"""Bytes of an answer: a bootstrap server's has about 100 for each worker."""


class Unreachable(Exception):
    """A question was not answered."""


class Bootstrap:
    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def ask(self, url: str, timeout: float) -> bytes:
        """The body of a 200, of at most ``MAX_SIZE`` bytes, within ``timeout`` seconds. Raises Unreachable,
        also after ``timeout``."""
        import httpx  # with all that it imports in turn, a tenth of a start

        if self._client is None:
            # Kept connections would outlive their servers, and plain HTTP needs no certificates.
            self._client = httpx.AsyncClient(
                limits=httpx.Limits(max_keepalive_connections=0), verify=False, trust_env=False
            )
        body = b""
        try:
            async with asyncio.timeout(timeout), self._client.stream("GET", url, timeout=None) as response:
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_SIZE:
                        break
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
        if response.status_code != 200 or len(body) > MAX_SIZE:
            raise Unreachable(f"{url}: HTTP {response.status_code}, {len(body)} bytes")
        return body

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
