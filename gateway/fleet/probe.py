"""The gateway's own requests to an engine: a few small GETs. Every failure is a ``ProbeFailed``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.fleet.engine_client import EngineClient, ProbeFailed
from gateway.fleet.scrape import Scrape, ScrapeReader
from gateway.framework import Clock
from gateway.framework.fleet import ServedModel

MAX_METRICS = 4 * 1024 * 1024
"""Bytes of a scrape: seventy times that of a plain engine, room for many ranks and connectors."""

MAX_JSON = 4 * 1024 * 1024
"""Bytes of ``/v1/models``: about 450 a model, so ten thousand adapters fit."""

MAX_MODELS = 10_000
MAX_NAME = 512
"""Characters of a model's id or a version."""


class EngineProbe(EngineClient):
    """Asks one engine."""

    async def metrics(self) -> bytes:
        return await self.get("/metrics", MAX_METRICS)

    async def scrape(self, reader: ScrapeReader, clock: Clock) -> Scrape:
        """``metrics``, read by the engine's own ``reader``. ``clock``: says when they came."""
        scrape = reader.read(await self.get("/metrics", MAX_METRICS), clock.monotonic())
        if scrape is None:
            raise ProbeFailed("garbage")
        return scrape

    async def check_health(self) -> None:
        """Raises ProbeFailed: ``unhealthy`` if the engine reports that it is dead (503). No such route is healthy."""
        try:
            await self.get("/health", MAX_JSON)
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

    async def kv_sources(self) -> Mapping[str, Any] | None:
        """``/kv_event_sources``: rank -> configuration. Empty: events are off. None: the engine has no such route."""
        try:
            answer = await self._json("/kv_event_sources")
        except ProbeFailed as failure:
            if failure.reason.startswith("status-4"):
                return None
            raise
        return answer if isinstance(answer, dict) else {}

    async def _json(self, path: str) -> Any:
        body = await self.get(path, MAX_JSON)
        try:
            return orjson.loads(body)
        except ValueError:
            raise ProbeFailed("garbage") from None


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
