"""Endpoints that an HTTP server lists: Prometheus' http_sd, or any other form of ``entries``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.core.tls import Unusable, WatchedContext
from gateway.discovery.entries import Listed, of_json
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import Found, Lost
from gateway.errors import ConfigError
from gateway.fleet.address import TlsContexts
from gateway.fleet.settings import TlsSettings

if TYPE_CHECKING:
    import httpx

MAX_ANSWER = 4 << 20
"""Bytes: the most endpoints, with their labels, are 0.4 MB; some servers say much of each."""


class Failed(Exception):
    """There is no list to be had now; the message says why."""


class HttpSource:
    def __init__(self, settings: DiscoverSettings) -> None:
        assert settings.http is not None
        self._settings = settings
        self._http = settings.http
        self._headers = {"Accept": "application/json", **self._http.headers}
        if self._http.bearer is not None:
            self._headers["Authorization"] = f"Bearer {self._http.bearer}"
        self._trust: WatchedContext | None = None
        self._client: httpx.AsyncClient | None = None
        self._last: tuple[bytes, Listed] | None = None
        """The last usable answer, and what it says."""

    async def follow(self, found: Found, lost: Lost) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(self._http.timeout):
                        body = await self._ask()
                    listed = await self._listed(body)
                except TimeoutError:
                    lost(f"no whole answer within {self._http.timeout:g} s")
                except Failed as failure:
                    lost(str(failure))
                else:
                    found(listed.endpoints, listed.wrong)
                await asyncio.sleep(self._http.interval)
        finally:
            if self._client is not None:
                await self._client.aclose()

    async def _ask(self) -> bytes:
        """Its whole answer. Raises Failed."""
        import httpx  # with all that it imports in turn, a tenth of a start

        client = await self._fitting_client()
        body = bytearray()
        try:
            async with client.stream("GET", self._http.url, headers=self._headers) as answer:
                if answer.status_code != 200:
                    raise Failed(f"it answers {answer.status_code}")
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER:
                        raise Failed(f"its answer is longer than {MAX_ANSWER} bytes")
        except (httpx.HTTPError, OSError) as error:
            raise Failed(str(error) or type(error).__name__) from error
        return bytes(body)

    async def _listed(self, body: bytes) -> Listed:
        """What an answer says; in a thread, since many endpoints take tenths of a second. Raises Failed."""
        if self._last is None or self._last[0] != body:
            try:
                self._last = body, await asyncio.to_thread(of_json, body, self._http.url, self._settings)
            except ConfigError as error:
                raise Failed(error.message) from error
        return self._last[1]

    async def _fitting_client(self) -> httpx.AsyncClient:
        """Its TLS files are read again when they have changed. Raises Failed."""
        import httpx

        before = None if self._trust is None else self._trust.context
        if self._trust is not None:
            await self._trust.look()
        elif self._http.url.startswith("https://"):
            try:
                self._trust = await asyncio.to_thread(TlsContexts().of, self._http.tls or TlsSettings())
            except Unusable as error:
                raise Failed(f"tls.{error.member}: {error}") from error
        context = None if self._trust is None else self._trust.context
        if self._client is not None and context is not before:
            await self._client.aclose()
            self._client = None
        if self._client is None:
            # Neither a proxy nor a password of the environment is meant for it.
            self._client = httpx.AsyncClient(
                verify=False if context is None else context, trust_env=False, timeout=self._http.timeout
            )
        return self._client
