"""What one worker of a host has found about an engine, as it tells the others: of all workers only the lead asks."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.fleet.health import HealthState
from gateway.fleet.scrape import Scrape
from gateway.framework.fleet import ServedModel


class Inspected(msgspec.Struct, array_like=True, frozen=True):
    """What the engine is. ``ranks``: None: not known. ``sources``: its ``/kv_event_sources``; None: not known.
    ``served``: in its own order."""

    ranks: int | None
    sources: dict[str, Any] | None
    served: list[ServedModel]
    version: str | None


class EngineReport(msgspec.Struct, array_like=True, frozen=True):
    """``url``: of the engine. ``asked``: Clock.monotonic() when the question began on which this rests; all workers of
    a host read the same clock. ``scrape``: None: there was none since the last report. ``inspected``: None: as it was
    told last."""

    url: str
    health: HealthState
    asked: float
    latency: float | None
    scrape: Scrape | None = None
    inspected: Inspected | None = None


class EngineFailed(msgspec.Struct, array_like=True, frozen=True):
    """A worker that does not lead has noticed of the engine at ``url``: ``refused``, a connection; ``broken``, an
    answer; ``outlier``, too many of its answers broke off."""

    url: str
    what: str


_ENCODER = msgspec.msgpack.Encoder()
_REPORT = msgspec.msgpack.Decoder(EngineReport)
_FAILED = msgspec.msgpack.Decoder(EngineFailed)
_NAMES = msgspec.msgpack.Decoder(list[str])


def encode(said: EngineReport | EngineFailed | list[str]) -> bytes:
    return _ENCODER.encode(said)


def decode_report(message: bytes) -> EngineReport:
    """Raises msgspec.MsgspecError."""
    return _REPORT.decode(message)


def decode_failed(message: bytes) -> EngineFailed:
    """Raises msgspec.MsgspecError."""
    return _FAILED.decode(message)


def decode_names(message: bytes) -> list[str]:
    """Raises msgspec.MsgspecError."""
    return _NAMES.decode(message)
