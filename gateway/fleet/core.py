"""One core of an engine: what has a KV cache, a queue and a speed of its own.

An engine without data parallelism is one core; with it each rank is one. Endpoints of several models on one URL stand
on the same core and share its ledger and its cost model, since there is one load and one speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.fleet.cost import FittedCost
from gateway.fleet.kv_source import KvSource
from gateway.fleet.ledger import Ledger
from gateway.fleet.lookups import Lookups
from gateway.fleet.moves import Moves
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Endpoint, EngineMetrics


@dataclass(slots=True, weakref_slot=True, eq=False)
class Place(Endpoint):
    """An endpoint as the fleet makes it, with what only the fleet knows of it.

    All of that stays when the endpoint is dropped: requests that are under way to it still need its key.
    ``api_key``: for requests to it, its own or its engine's. ``source``: its KV events', once ``source_known``.
    ``drained``: an operator has taken it out. ``lends``: requests whose KV it computes for another engine, which has
    yet to fetch it.
    """

    core: Core = field(kw_only=True, repr=False)
    settings: EndpointSettings = field(kw_only=True, repr=False)
    api_key: str | None = field(kw_only=True, repr=False, default=None)
    source: KvSource | None = field(kw_only=True, repr=False, default=None)
    source_known: bool = field(kw_only=True, repr=False, default=False)
    drained: bool = field(kw_only=True, repr=False, default=False)
    lends: int = field(kw_only=True, repr=False, default=0)

    @property
    def running(self) -> int:
        """Requests that would notice if its engine ended: ours on its core, and who has yet to fetch from it."""
        return self.core.ledger.requests + self.lends


@dataclass(slots=True, eq=False)
class Core:
    """``rank``: None where the engine is one endpoint."""

    rank: int | None
    ledger: Ledger
    cost: FittedCost
    places: list[Place] = field(default_factory=list)
    moves: Moves = field(default_factory=Moves)
    lookups: Lookups = field(default_factory=Lookups)

    def scraped(self, metrics: EngineMetrics, asked: float) -> None:
        """Hand new metrics to the endpoints, and what others sent to the ledger. ``asked``: when the scrape began."""
        if metrics.at is not None:
            metrics = replace(metrics, moved_lately=self.moves.seen(metrics.moved, metrics.at))
        seen = metrics
        for place in self.places:
            seen = place.metrics = _corrected(metrics, place.settings)
        self.ledger.scraped(seen, asked)


def _corrected(metrics: EngineMetrics, settings: EndpointSettings) -> EngineMetrics:
    if settings.kv_capacity_tokens is None:
        return metrics
    return replace(metrics, kv_capacity=settings.kv_capacity_tokens)
