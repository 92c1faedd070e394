"""The gateway's own requests to an engine: a few small GETs.

Rules: an engine's key goes to that engine only and into no log or error. Every failure is a ``ProbeFailed``; how
answers are bounded is in ``ask.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.fleet.address import Address
from gateway.fleet.ask import ProbeFailed, ask
from gateway.fleet.scrape import Scrape, ScrapeReader
from gateway.framework import Clock
from gateway.framework.fleet import ServedModel
from gateway.http1.connection import encode_head
from gateway.http1.pool import Pool

MAX_METRICS = 4 * 1024 * 1024
"""Bytes of a scrape: seventy times that of a plain engine, room for many ranks and connectors."""

MAX_JSON = 4 * 1024 * 1024
"""Bytes of ``/v1/models``: about 450 a model, so ten thousand adapters fit."""

MAX_MODELS = 10_000
MAX_NAME = 512
"""Characters of a model's id or a version."""

HEADERS = [("Accept", "text/plain, application/json"), ("Accept-Encoding", "identity")]


class EngineProbe:
    """Asks one engine. ``timeout``: seconds for one question. ``connected``: called with the seconds of a connect."""

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        address: Address,
        api_key: str | None,
        timeout: float,
        connected: Callable[[float], None],
    ) -> None:
        self._pool = pool
        self._clock = clock
        self.retarget(address, api_key)
        self._timeout = timeout
        self._connected = connected

    def retarget(self, address: Address, api_key: str | None) -> None:
        """Use these from the next question on."""
        self._address = address
        self._headers = [*HEADERS, ("Authorization", f"Bearer {api_key}")] if api_key else HEADERS

    async def metrics(self) -> bytes:
        return await self._get("/metrics", MAX_METRICS)

    async def scrape(self, reader: ScrapeReader) -> Scrape:
        """``metrics``, read by the engine's own ``reader``."""
        scrape = reader.read(await self._get("/metrics", MAX_METRICS), self._clock.monotonic())
        if scrape is None:
            raise ProbeFailed("garbage")
        return scrape

    async def check_health(self) -> None:
        """Raises ProbeFailed: ``unhealthy`` if the engine reports that it is dead (503). No such route is healthy."""
        try:
            await self._get("/health", MAX_JSON)
        except ProbeFailed as failure:
            if failure.reason == "status-503":
                raise ProbeFailed("unhealthy") from None
            if failure.reason not in ("status-404", "status-405"):
                raise

    async def models(self) -> dict[str, ServedModel]:
        """``/v1/models``: entries by id, in the engine's order."""
        entries = _member(await self._json("/v1/models"), "data")
        if not isinstance(entries, list):
            raise ProbeFailed("garbage")
        served = (_served(entry) for entry in entries[:MAX_MODELS])
        return {model.id: model for model in served if model is not None}

    async def version(self) -> str | None:
        """``/version``. None: the engine has no such route, or answers something else."""
        try:
            return _name(_member(await self._json("/version"), "version"))
        except ProbeFailed as failure:
            if failure.reason.startswith("status-4") or failure.reason == "garbage":
                return None
            raise

    async def kv_sources(self) -> Mapping[str, Any]:
        """``/kv_event_sources``: rank -> configuration. Empty: events are off, or the engine has no such route."""
        try:
            answer = await self._json("/kv_event_sources")
        except ProbeFailed as failure:
            if failure.reason.startswith("status-4"):
                return {}
            raise
        return answer if isinstance(answer, dict) else {}

    async def _json(self, path: str) -> Any:
        body = await self._get(path, MAX_JSON)
        try:
            return orjson.loads(body)
        except ValueError:
            raise ProbeFailed("garbage") from None

    async def _get(self, path: str, limit: int) -> bytes:
        head = encode_head("GET", path, self._address.authority, self._headers, None)
        return await ask(
            self._pool, self._address, head, b"", limit=limit, timeout=self._timeout, connected=self._connected
        )


def _member(answer: Any, key: str) -> Any:
    return answer.get(key) if isinstance(answer, dict) else None


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME else None


def _served(entry: Any) -> ServedModel | None:
    """One entry of ``data``; None if it has no usable id."""
    name = _name(_member(entry, "id"))
    if name is None:
        return None
    length = _member(entry, "max_model_len")
    return ServedModel(
        id=name,
        root=_name(_member(entry, "root")),
        parent=_name(_member(entry, "parent")),
        max_model_len=length if type(length) is int and length > 0 else None,
    )
