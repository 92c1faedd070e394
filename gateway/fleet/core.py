"""One core of an engine: what has a KV cache, a queue and a speed of its own.

An engine without data parallelism is one core; with it each rank is one. Endpoints of several models on one URL stand
on the same core and share its ledger and its cost model, since there is one load and one speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.fleet.cost import FittedCost
from gateway.fleet.kv_source import KvSource
from gateway.fleet.ledger import Ledger
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Endpoint, EngineMetrics


@dataclass(slots=True, eq=False)
class Place:
    """An endpoint and what it was made of. ``source``: its KV events', once ``source_known``."""

    endpoint: Endpoint
    settings: EndpointSettings
    source: KvSource | None = None
    source_known: bool = False


@dataclass(slots=True, eq=False)
class Core:
    """``rank``: None where the engine is one endpoint."""

    rank: int | None
    ledger: Ledger
    cost: FittedCost
    places: list[Place] = field(default_factory=list)

    def scraped(self, metrics: EngineMetrics, asked: float) -> None:
        """Hand new metrics to the endpoints, and what others sent to the ledger. ``asked``: when the scrape began."""
        seen = metrics
        for place in self.places:
            seen = place.endpoint.metrics = _corrected(metrics, place.settings)
        self.ledger.scraped(seen, asked)


def _corrected(metrics: EngineMetrics, settings: EndpointSettings) -> EngineMetrics:
    if settings.kv_capacity_tokens is None:
        return metrics
    return replace(metrics, kv_capacity=settings.kv_capacity_tokens)
