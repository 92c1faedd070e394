"""All engines and endpoints: how they are made and dropped. When that happens is up to ``Fleet`` and ``EngineWatch``.

Rules: one URL is one engine and has one watch, however many models are bound to it. The tuple of a model's endpoints
never changes: it is replaced. What cannot be made raises ConfigError, and leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from weakref import WeakSet, WeakValueDictionary

from gateway.errors import ConfigError
from gateway.fleet.address import Address, Location, TlsContexts
from gateway.fleet.context import FleetContext, FleetListener
from gateway.fleet.engine import EngineCore, FleetEndpoint, FleetEngine, ModelBinding, with_tls
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.health import Health, spared
from gateway.fleet.kept_costs import Fitted, KeptCosts, PeersKey
from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.fit import PeerGroup
from gateway.fleet.load.hardware import starting_costs
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.names import bind, check_names, same_name
from gateway.fleet.ranks import ranks_of
from gateway.fleet.settings import EndpointSettings, StartingCosts
from gateway.framework import Engine, Role
from gateway.framework.fleet import Model


class SlotAllocator:
    """Slots: small integers by which the cache index knows endpoints, a bit each.

    Rules: the smallest free slot is allocated, so that the index's integers stay short. The slot of a dropped endpoint
    is free again once the index has cleared its bits, and the endpoint's last requests have ended: what they report
    until then would be credited to another endpoint.
    """

    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []
        self._in_use: set[int] = set()
        self._resting: dict[int, Callable[[], bool]] = {}
        self._cleared: dict[int, Callable[[], bool]] = {}

    def allocate(self) -> int:
        """The smallest free slot, from 0."""
        for slot in [slot for slot, busy in self._cleared.items() if not busy()]:
            del self._cleared[slot]
            heappush(self._free, slot)
        if self._free:
            slot = heappop(self._free)
        else:
            slot = self._next
            self._next += 1
        self._in_use.add(slot)
        return slot

    def retire(self, slot: int, busy: Callable[[], bool]) -> None:
        """Its endpoint was dropped. ``busy``: whether requests still run there. Raises KeyError if it is not in use."""
        self._in_use.remove(slot)
        self._resting[slot] = busy

    def release(self, slot: int) -> None:
        """Its bits are cleared. Raises KeyError if it is not retired: a live endpoint's bits would become another's."""
        self._cleared[slot] = self._resting.pop(slot)


FOREIGN_HALF_LIFE = 5.0
"""Scrape intervals after which foreign load counts half: one lost scrape changes it by an eighth."""


class EngineRegistry:
    """``watches``: by engine. ``by_model``: endpoints by the name of their model. ``leaving``: endpoints that were
    dropped while requests ran there; only those requests keep them. ``open``: endpoints are announced when made.
    ``kept_costs``: of an earlier process. ``changed``: called when other endpoints may be used than before."""

    def __init__(self, context: FleetContext) -> None:
        self._context = context
        self._peers: WeakValueDictionary[PeersKey, PeerGroup] = WeakValueDictionary()
        self.kept_costs = KeptCosts()
        self.open = False
        self.changed: Callable[[], None] = lambda: None
        self.slots = SlotAllocator()
        self.tls_contexts = TlsContexts()
        self.watches: dict[Engine, EngineWatch] = {}
        self.by_model: dict[str, tuple[FleetEndpoint, ...]] = {}
        self.leaving: WeakSet[FleetEndpoint] = WeakSet()

    @property
    def engines(self) -> list[FleetEngine]:
        return [watch.engine for watch in self.watches.values()]

    @property
    def endpoints(self) -> list[FleetEndpoint]:
        return [endpoint for endpoints in self.by_model.values() for endpoint in endpoints]

    def fitted(self) -> Iterator[Fitted]:
        """The engines whose costs are fitted."""
        return (one for engine in self.engines if (one := self._fitted(engine)) is not None)

    def addresses_of(self, wanted: Sequence[tuple[Model, Sequence[EndpointSettings]]]) -> list[Address]:
        """The addresses of all engines of ``wanted``. While they are held, ``FleetEngine.update_access`` cannot fail.

        Raises ConfigError if TLS files cannot be used, or two models disagree about an engine's TLS.
        """
        by_location: dict[Location, list[EndpointSettings]] = {}
        for model, endpoints in wanted:
            for settings in endpoints:
                of_url = by_location.setdefault(location := Location.of(settings.url), [])
                of_url.append(settings)
                if settings.tls not in (None, with_tls(of_url).tls):
                    raise ConfigError(
                        f"model {model.name}: endpoint {location.url} has another tls than with another model"
                    )
        return [Address.of(with_tls(of_url), self.tls_contexts) for of_url in by_location.values()]

    # making

    def create(self, model: Model, settings: EndpointSettings, *, coming: bool = False) -> ModelBinding:
        """Bind ``model`` to the engine at this URL, which is made if there is none, with an endpoint on each core.

        Raises ConfigError as ``Fleet`` does.
        """
        engine = self._find_or_create(model, settings)
        try:
            binding = bind(model, settings, engine, self.engines)
        except ConfigError:
            self._drop_if_unused(engine)
            raise
        binding.coming = coming
        engine.bindings.append(binding)
        self._update_access(engine)
        created = self._create_endpoints([binding], engine.cores)
        if self.open:
            for endpoint in created:
                self.announce(endpoint)
        return binding

    def announce(self, endpoint: FleetEndpoint) -> None:
        self._context.listeners.notify(FleetListener.endpoint_added, endpoint)
        self._context.observer.draining(endpoint.name, endpoint.draining)

    def _find_or_create(self, model: Model, settings: EndpointSettings) -> FleetEngine:
        location = Location.of(settings.url)
        present = [engine for engine in self.engines if not engine.going]
        if engine := next((engine for engine in present if engine.location == location), None):
            if any(binding.model.name == model.name and not binding.going for binding in engine.bindings):
                raise ConfigError(f"model {model.name}: endpoint {engine.url} is listed twice")
            if engine.configured_ranks != settings.ranks:
                raise ConfigError(
                    f"model {model.name}: endpoint {engine.url} {_ranks_in_words(settings.ranks)}, "
                    f"but another model {_ranks_in_words(engine.configured_ranks)}"
                )
            return engine
        engine = FleetEngine(
            url=location.url,
            name=settings.name or location.authority,
            location=location,
            address=Address.of(settings, self.tls_contexts),
            configured_ranks=settings.ranks,
        )
        for other in present:
            if other.name == engine.name:
                raise same_name(other, engine, engine.name)
        engine.cores = [self._make_core(model, settings, rank) for rank in ranks_of(settings.ranks or 1)]
        self.watches[engine] = EngineWatch(
            engine, self._context, health_changed=self.states_changed, set_ranks=partial(self._set_ranks, engine)
        )
        return engine

    def _make_core(self, model: Model, settings: EndpointSettings, rank: int | None) -> EngineCore:
        context = self._context
        ledger = Ledger(context.clock, FOREIGN_HALF_LIFE * context.settings.scrape.interval)
        return EngineCore(rank, ledger, FittedCost(*self._starting_costs(model, settings), ledger))

    def _starting_costs(self, model: Model, settings: EndpointSettings) -> tuple[StartingCosts, PeerGroup]:
        """The starting costs of a core of this endpoint, and the group of cores with the same declared hardware."""
        start = settings.costs or starting_costs((settings.cost, self._context.settings.cost), lambda: None)
        if Role(settings.role) is Role.PREFILL:
            start = start.of_prompts_only()
        return start, self._peers.setdefault((model.name, settings.role, start), PeerGroup())

    def _fitted(self, engine: FleetEngine) -> Fitted | None:
        first = engine.bindings[0]
        start, peers = self._starting_costs(first.model, first.settings)
        return Fitted(engine, (first.model.name, first.settings.role, start), peers) if start.fit else None

    def _create_endpoints(self, bindings: Iterable[ModelBinding], cores: Sequence[EngineCore]) -> list[FleetEndpoint]:
        """An endpoint of each binding on each core."""
        created = []
        for binding in bindings:
            endpoints = [binding.engine.add_endpoint(binding, core, self.slots.allocate()) for core in cores]
            binding.update_draining()
            name = binding.model.name
            self.by_model[name] = (*self.by_model.get(name, ()), *endpoints)
            created += endpoints
        return created

    def _set_ranks(self, engine: FleetEngine, number: int) -> None:
        """Make cores and endpoints for the ranks that are new, and drop those of ranks that are gone.

        Raises ConfigError, with nothing changed, if a new endpoint would have another's name.
        """
        ranks = ranks_of(number)
        check_names([binding for binding in engine.bindings if not binding.going], ranks, self.engines)
        before = {core.rank: core for core in engine.cores}
        first = engine.bindings[0]
        cores = [before.get(rank) or self._make_core(first.model, first.settings, rank) for rank in ranks]
        for endpoint in self._create_endpoints(engine.bindings, [core for core in cores if core.rank not in before]):
            self.announce(endpoint)
        for core in before.values():
            if core not in cores:
                for endpoint in tuple(core.endpoints):
                    self._drop_endpoint(endpoint)
        engine.cores = cores
        if (fitted := self._fitted(engine)) is not None:
            self.kept_costs.recall_cores(fitted, cores)

    # changing

    def refresh(self) -> None:
        """After a change of bindings: what each engine has from all of them together."""
        for watch in self.watches.values():
            engine = watch.engine
            self._update_access(engine)
            # The first binding gives a core's starting costs. If they change, the core's speed is learned anew.
            first = engine.bindings[0]
            for core in engine.cores:
                core.cost.reconfigure(*self._starting_costs(first.model, first.settings))
            self.update_draining(engine)
            # An engine that was dropped under the same name has removed the series of that name: show the state again.
            watch.publish_state()
        self.states_changed()

    def _update_access(self, engine: FleetEngine) -> None:
        engine.update_access(self.tls_contexts)
        self.watches[engine].update_access()

    def update_draining(self, engine: FleetEngine) -> None:
        for binding in engine.bindings:
            binding.update_draining()
            if self.open:
                for endpoint in binding.endpoints:
                    self._context.observer.draining(endpoint.name, endpoint.draining)

    def states_changed(self) -> None:
        """Endpoints have come or gone, or may be used or not, other than before."""
        self._update_spared()
        self.changed()

    def _update_spared(self) -> None:
        """Spare engines so that of a model's endpoints of one role at most half are ejected."""
        watches = self.watches.values()
        if not any(watch.health.ejected or watch.engine.spared for watch in watches):
            return
        groups: dict[tuple[str, Role], dict[Health, None]] = {}
        for name, endpoints in self.by_model.items():
            for endpoint in endpoints:
                if not endpoint.draining and (watch := self.watches.get(endpoint.engine)) is not None:
                    groups.setdefault((name, endpoint.role), {})[watch.health] = None
        kept = spared(groups.values())
        for watch in watches:
            watch.set_spared(watch.health in kept)

    # dropping

    def drop(self, bindings: Sequence[ModelBinding]) -> None:
        """Drop all endpoints of ``bindings``, models without an endpoint, and engines without a binding."""
        for binding in bindings:
            for endpoint in tuple(binding.endpoints):
                self._drop_endpoint(endpoint)
        for engine in {binding.engine for binding in bindings} & self.watches.keys():
            self._drop_if_unused(engine)

    def _drop_endpoint(self, endpoint: FleetEndpoint) -> None:
        name, ledger = endpoint.model.name, endpoint.core.ledger
        endpoint.core.endpoints.remove(endpoint)
        endpoint.binding.endpoints.remove(endpoint)
        if left := tuple(other for other in self.by_model[name] if other is not endpoint):
            self.by_model[name] = left
        else:
            del self.by_model[name]
        self.slots.retire(endpoint.slot, busy=lambda: ledger.requests > 0)
        if endpoint.running:
            self.leaving.add(endpoint)
        self._context.listeners.notify(FleetListener.endpoint_dropped, endpoint)
        if not any(other.name == endpoint.name for other in self.endpoints):
            self._context.observer.endpoint_dropped(endpoint.name)

    def _drop_if_unused(self, engine: FleetEngine) -> None:
        """Drop the bindings that have no endpoint any more, and with the last one the engine."""
        engine.bindings = [binding for binding in engine.bindings if binding.endpoints]
        if engine.bindings:
            self._update_access(engine)
            return
        self.watches.pop(engine).stop()
        if not any(other.name == engine.name for other in self.watches):
            self._context.observer.engine_dropped(engine.name)


def _ranks_in_words(ranks: int | None) -> str:
    return "leaves ranks to the engine" if ranks is None else f"says ranks: {ranks}"
