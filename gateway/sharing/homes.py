"""Which engine keeps a stored response, known to all replicas: the client's next request may come to another one.

Only a response that this process does not know is looked up, and nobody waits for that long. Nothing depends on it: a
response that is not found is one that did not go through any replica lately.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from gateway.valkey.client import Away

LIFETIME = 24 * 3600
"""Seconds after which a response is forgotten, as each process forgets it."""

LIMIT = 0.25
"""Seconds that a request waits for the answer. The server gives it within one; without it the client gets an error."""

MOST_URL = 2048
"""Bytes of what may be an engine's URL. It is compared with those of the configuration before anything is sent."""


class Asked(Protocol):
    """``Link``."""

    def tell(self, *command: Any) -> bool: ...

    async def ask(self, *command: Any) -> Any: ...


class Homes:
    """``name``: of the replicas that belong together."""

    def __init__(self, link: Asked, name: str) -> None:
        self._link = link
        self._start = f"kvgate:{name}:resp:"

    def note(self, response: str, url: str) -> None:
        """The engine at ``url`` keeps ``response``. While the server is away this is lost."""
        self._link.tell("SET", self._start + response, url, "EX", LIFETIME)

    async def find(self, response: str) -> str | None:
        """The URL of the engine that keeps it, as some replica noted it; None: nobody knows, or not in time."""
        try:
            async with asyncio.timeout(LIMIT):
                found = await self._link.ask("GET", self._start + response)
        except (Away, TimeoutError):
            return None
        if not isinstance(found, bytes) or len(found) > MOST_URL:
            return None
        return found.decode(errors="replace")
