"""An engine as the fleet makes it: its cores, the models that are bound to it, and their endpoints.

One URL is one ``FleetEngine``. It has an ``EngineCore`` for each data-parallel rank and a ``ModelBinding`` for each
model that the configuration names for it; each pair of the two is a ``FleetEndpoint``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.fleet.address import Address, Location, TlsContexts
from gateway.fleet.health import OutlierDetector
from gateway.fleet.kv_source import KvSource
from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.load.transfers import RecentTransfers
from gateway.fleet.settings import EndpointSettings
from gateway.fleet.sleep import Sleep
from gateway.framework import Endpoint, Engine, Role
from gateway.framework.fleet import EngineMetrics, Model


class CacheLookups(NamedTuple):
    """Prompt tokens that an engine looked up in a cache, and those of them that it found."""

    queried: float = 0.0
    hit: float = 0.0


NOTHING = CacheLookups()


@dataclass(slots=True)
class CacheCounters:
    """The counters of one engine core.

    The first update reports no increase: what was counted before it was not sent by this gateway. A counter that is
    lower than before was reset, and its whole value is an increase.
    """

    _own: CacheLookups | None = None
    _external: CacheLookups = NOTHING

    def update(self, metrics: EngineMetrics) -> tuple[CacheLookups, CacheLookups]:
        """Returns the increase since the last update: in the engine's own cache, and in what a KV connector reaches."""
        own = CacheLookups(metrics.prefix_queries, metrics.prefix_hits)
        external = CacheLookups(metrics.external_queries, metrics.external_hits)
        first, before = self._own is None, (self._own or NOTHING, self._external)
        self._own, self._external = own, external
        return (NOTHING, NOTHING) if first else (_since(before[0], own), _since(before[1], external))

    def restart(self) -> None:
        """The engine is another process: its counters began at zero, also if they are above the last ones."""
        if self._own is not None:
            self._own = self._external = NOTHING


def _since(before: CacheLookups, now: CacheLookups) -> CacheLookups:
    if now.queried < before.queried or now.hit < before.hit:
        return now
    return CacheLookups(now.queried - before.queried, now.hit - before.hit)


LATENCY_WEIGHT = 0.2
"""Weight of a new round trip in the running mean: about the last five count, so one late wake-up of our loop hardly
changes it."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class FleetEndpoint(Endpoint):
    """One model binding on one engine core.

    ``source``: the source of its KV events, valid once ``source_known``. ``drained``: by an operator. ``lent``: the
    number of requests whose KV it computes for another engine that has not fetched it yet. ``api_key``: its own, else
    its engine's.

    A dropped endpoint keeps its engine and its binding, since running requests still need the address and the key.
    """

    engine: FleetEngine
    core: EngineCore = field(kw_only=True, repr=False)
    binding: ModelBinding = field(kw_only=True, repr=False)
    source: KvSource | None = field(kw_only=True, repr=False, default=None)
    source_known: bool = field(kw_only=True, repr=False, default=False)
    drained: bool = field(kw_only=True, repr=False, default=False)
    lent: int = field(kw_only=True, repr=False, default=0)
    api_key: str | None = field(kw_only=True, repr=False, default=None)

    @property
    def running(self) -> int:
        """Requests of this process that would fail if the engine ended now: those on its core, and KV that is yet to be
        fetched."""
        return self.core.ledger.own_requests + self.lent


@dataclass(slots=True, eq=False)
class EngineCore:
    """vLLM's EngineCore, one for each data-parallel rank: it has its own KV cache, queue and speed.

    The endpoints of all models on it share its ledger and its cost model. ``rank``: None where the engine has a single
    core.
    """

    rank: int | None
    ledger: Ledger
    cost: FittedCost
    endpoints: list[FleetEndpoint] = field(default_factory=list)
    recent_transfers: RecentTransfers = field(default_factory=RecentTransfers)
    cache_counters: CacheCounters = field(default_factory=CacheCounters)

    def apply_scrape(self, metrics: EngineMetrics, asked: float) -> None:
        """Give new metrics to the endpoints and the ledger. ``asked``: Clock.monotonic() when the scrape began."""
        if metrics.at is not None:
            metrics = replace(metrics, recent_transfers=self.recent_transfers.update(metrics.transfers, metrics.at))
        configured = [endpoint.binding.settings.kv_capacity_tokens for endpoint in self.endpoints]
        for endpoint, capacity in zip(self.endpoints, configured, strict=True):
            endpoint.metrics = _with_capacity(metrics, capacity)
        # All models on the core share one cache: its capacity is the first one that is configured.
        self.ledger.apply_scrape(_with_capacity(metrics, next(filter(None, configured), None)), asked)


@dataclass(slots=True, eq=False)
class ModelBinding:
    """The configuration of one model on one engine. It has an endpoint on each core of the engine.

    ``name``: the name of its endpoint, or the part of its endpoints' names before the rank. ``coming``: it is in a
    configuration that is prepared and not applied yet; no request goes there. ``going``: it is not in the configuration
    that is prepared; its names are free for others.
    """

    model: Model
    engine: FleetEngine
    settings: EndpointSettings
    name: str
    endpoints: list[FleetEndpoint] = field(default_factory=list)
    coming: bool = False
    going: bool = False

    def endpoint_name(self, rank: int | None) -> str:
        return self.name if rank is None else f"{self.name}/{rank}"

    def reconfigure(self, model: Model, settings: EndpointSettings) -> None:
        """Set everything that may change while the endpoints stay: all except URL, name and number of ranks."""
        self.model, self.settings = model, settings
        for endpoint in self.endpoints:
            endpoint.model, endpoint.role, endpoint.labels = model, Role(settings.role), dict(settings.labels)

    def update_draining(self) -> None:
        """Set ``draining`` of its endpoints: whether they get no new requests although they are healthy."""
        for endpoint in self.endpoints:
            endpoint.draining = self.coming or self.settings.drain or self.engine.drained or endpoint.drained


@dataclass(slots=True, eq=False)
class FleetEngine(Engine):
    """One URL, however many models are bound to it.

    ``address``: how to connect to ``location``. ``configured_ranks``: None: as many as the engine reports.
    ``api_key``: for endpoints without one of their own. ``drained``: by an operator. ``sleep``: how deeply it sleeps;
    None: it is awake. ``answers``: how its last ones ended. ``heard_at``: Clock.monotonic() when one last began or
    ended. A dropped engine keeps its address and key for the requests that are under way to it.
    """

    location: Location = field(kw_only=True, repr=False)
    address: Address = field(kw_only=True, repr=False)
    configured_ranks: int | None = field(kw_only=True, repr=False)
    api_key: str | None = field(kw_only=True, repr=False, default=None)
    drained: bool = field(kw_only=True, repr=False, default=False)
    sleep: Sleep | None = field(kw_only=True, repr=False, default=None)
    bindings: list[ModelBinding] = field(kw_only=True, repr=False, default_factory=list)
    cores: list[EngineCore] = field(kw_only=True, repr=False, default_factory=list)
    answers: OutlierDetector = field(kw_only=True, repr=False, default_factory=OutlierDetector)
    heard_at: float = field(kw_only=True, repr=False, default=0.0)

    @property
    def endpoints(self) -> list[FleetEndpoint]:
        """The endpoints of all models, by rank."""
        return [endpoint for core in self.cores for endpoint in core.endpoints]

    @property
    def going(self) -> bool:
        """Whether the configuration that is prepared has none of its bindings."""
        return bool(self.bindings) and all(binding.going for binding in self.bindings)

    def update_access(self, contexts: TlsContexts) -> None:
        """Take address and key from the bindings: of each the first one that names it.

        Raises ConfigError if TLS files cannot be used.
        """
        self.address = Address.of(with_tls([binding.settings for binding in self.bindings]), contexts)
        self.api_key = next((binding.settings.api_key for binding in self.bindings if binding.settings.api_key), None)
        for binding in self.bindings:
            for endpoint in binding.endpoints:
                endpoint.api_key = binding.settings.api_key or self.api_key

    def record_connect(self, seconds: float) -> None:
        """Add the time of a new connection to the running mean of round trips."""
        self.latency = seconds if self.latency is None else self.latency + LATENCY_WEIGHT * (seconds - self.latency)

    def add_endpoint(self, binding: ModelBinding, core: EngineCore, slot: int) -> FleetEndpoint:
        endpoint = FleetEndpoint(
            slot=slot,
            name=binding.endpoint_name(core.rank),
            model=binding.model,
            engine=self,
            load=core.ledger,
            cost=core.cost,
            rank=core.rank,
            role=Role(binding.settings.role),
            labels=dict(binding.settings.labels),
            core=core,
            binding=binding,
            api_key=binding.settings.api_key or self.api_key,
        )
        if core.endpoints:
            # Another model is on this core already: the metrics of the core are valid for this endpoint, too.
            endpoint.metrics = core.endpoints[0].metrics
            endpoint.warmth = core.endpoints[0].warmth
        core.endpoints.append(endpoint)
        binding.endpoints.append(endpoint)
        return endpoint


def with_tls(settings: Sequence[EndpointSettings]) -> EndpointSettings:
    """Of settings of one URL, the first with TLS settings, or the first."""
    return next((one for one in settings if one.tls is not None), settings[0])


def _with_capacity(metrics: EngineMetrics, tokens: int | None) -> EngineMetrics:
    return metrics if tokens is None else replace(metrics, kv_capacity=tokens)
