"""All engines and endpoints. Only the fleet creates and drops them, and hands out slots.

Rules: the sequence that ``endpoints`` returns is never changed: it is replaced. All methods for requests still work for
a dropped endpoint, until its last request has ended. Every background task belongs to the fleet, and ends with
``close``. Models are compared by name: a reload may make a new ``Model`` object for the same model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from gateway.core.observer import Observer
from gateway.core.tasks import TaskSet
from gateway.core.tls import follow
from gateway.fleet.address import Location
from gateway.fleet.context import FleetContext, FleetListener
from gateway.fleet.diff import FleetDiff
from gateway.fleet.engine import FleetEndpoint
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.kept_costs import keep
from gateway.fleet.kv_source import KvSource
from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.kept import KeptPeers
from gateway.fleet.registry import EngineRegistry
from gateway.fleet.reports import Reports
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.fleet.waker import Waker
from gateway.framework import Clock, Endpoint
from gateway.framework.fleet import Model, ServedModel
from gateway.http1.pool import Pool
from gateway.sharing.siblings import Siblings


class Adapters(Mapping[str, ServedModel]):
    """The adapters of the engines of ``endpoints`` by id. Where several engines report one, the first engine's entry.

    A name is looked up in each engine's own list, without gathering all lists: requests for adapters and for unknown
    models do this. For 100 engines with 1,000 adapters each a lookup takes 10 us, and gathering 20 ms.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints

    def __getitem__(self, name: str) -> ServedModel:
        for endpoint in self._endpoints:
            entry = endpoint.engine.served.get(name)
            if entry is not None and entry.parent is not None:
                return entry
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        engines = dict.fromkeys(endpoint.engine for endpoint in self._endpoints)  # once each, however many its ranks
        served = (entry for engine in engines for entry in engine.served.values())
        return iter(dict.fromkeys(entry.id for entry in served if entry.parent is not None))

    def __len__(self) -> int:
        return sum(1 for _ in self)


__all__ = ["DrainState", "Fleet", "FleetDiff", "FleetListener", "KvSource"]


@dataclass(frozen=True, slots=True)
class DrainState:
    """How far the drain of an endpoint is. ``gone``: the configuration does not have its engine any more. ``coming``:
    the change that adds it is not applied yet. ``running``: requests that would fail if the engine ended now."""

    gone: bool
    coming: bool
    by_file: bool
    by_operator: bool
    running: int


class Fleet:
    """``models``: each with the settings of its endpoints. ``siblings``: the host's workers, one of which asks the
    engines for all. ``by_model``: the endpoints by the name of their model, as ``endpoints`` returns them; a model
    without any is not there. ``waker``: wakes engines that sleep.

    Raises ConfigError where names clash, a model names a URL twice, two models disagree about an engine's ranks or TLS,
    or a TLS file cannot be used.
    """

    def __init__(
        self,
        models: Sequence[tuple[Model, Sequence[EndpointSettings]]],
        settings: FleetSettings,
        clock: Clock,
        observer: Observer,
        random: Random,
        siblings: Siblings | None = None,
    ) -> None:
        self._reports = None if siblings is None else Reports(siblings)
        self._context = FleetContext(settings, clock, observer, random, self._reports)
        self.pauses = self._context.pauses
        self._registry = EngineRegistry(self._context)
        self.by_model: Mapping[str, Sequence[Endpoint]] = self._registry.by_model
        self._tasks = TaskSet()
        self.waker = Waker(self._context, self._registry, self._tasks)
        self._connections: Pool | None = None
        held = self._registry.addresses_of(models)
        for model, endpoints in models:
            for endpoint in endpoints:
                self._registry.create(model, endpoint)
        del held

    # life

    async def start(self) -> None:
        """Watch all engines. Returns when each was probed once and has as many endpoints as ranks, or after the scrape
        timeout."""
        self._connections = self.waker.pool = Pool(self._context.clock)
        self._registry.open = True
        for endpoint in self._registry.endpoints:
            self._registry.announce(endpoint)
        watches = list(self._registry.watches.values())
        for watch in watches:
            watch.start(self._tasks, self._connections)
        if self._reports is not None:
            await self._reports.start()
        self._tasks.start(follow(self._registry.tls_contexts.all), name="look at TLS files")
        await self._first_probes(watches)

    async def close(self) -> None:
        """End every task and connection. May be called after a failed start, and more than once."""
        if self._reports is not None:
            self._reports.close()
        await self._tasks.close()
        connections, self._connections, self.waker.pool = self._connections, None, None
        if connections is not None:
            connections.close()

    def listen(self, listener: FleetListener) -> None:
        """Notify ``listener`` from now on. If the fleet has started, the listener first gets the events that it
        missed."""
        self._context.listeners.add(listener)
        if self._connections is None:
            return
        for endpoint in self._registry.endpoints:
            listener.endpoint_added(endpoint)
            if endpoint.source_known:
                listener.kv_source(endpoint, endpoint.source)

    def when_changed(self, call: Callable[[], None]) -> None:
        """``call`` is called whenever other endpoints may be used than before."""
        self._registry.changed = call

    # costs that outlive the process

    def keep_costs(self) -> Sequence[KeptPeers]:
        """What is fitted now."""
        return keep(self._registry.fitted())

    def recall_costs(self, kept: Sequence[KeptPeers]) -> int:
        """Go on from what an earlier process kept; before ``start``. Returns how many of ``kept`` fit."""
        return self._registry.kept_costs.recall(self._registry.fitted(), kept)

    # another configuration

    async def prepare(self, wanted: Sequence[tuple[Model, Sequence[EndpointSettings]]]) -> FleetDiff:
        """Create and watch what ``wanted`` has and the fleet lacks. Returns when each new engine was probed once, or
        after the scrape timeout. No request goes there before ``apply``.

        One change at a time; each is applied or undone. Raises ConfigError as the constructor does. After an error or
        a cancellation nothing has changed.
        """
        diff = FleetDiff.between(self._registry.engines, wanted)
        diff.addresses = self._registry.addresses_of(wanted)
        for binding in diff.removed:
            binding.going = True
        try:
            for model, settings in diff.missing:
                binding = self._registry.create(model, settings, coming=True)
                diff.added.append(binding)
                watch = self._registry.watches[binding.engine]
                watch.refresh_soon()
                if self._connections is not None:
                    watch.start(self._tasks, self._connections)
                # Names are checked against all others, which takes 0.5 ms among 300: streams run in between.
                await asyncio.sleep(0)
            engines = {binding.engine for binding in diff.added}
            await self._first_probes([self._registry.watches[engine] for engine in engines])
        except BaseException:
            self.undo(diff)
            raise
        return diff

    def apply(self, diff: FleetDiff) -> None:
        """Make the fleet what was wanted, from the next request on. Requests under way to what is removed end as they
        would have."""
        self._registry.drop(diff.removed)
        for binding, model, settings in diff.kept:
            if settings.kv_events != binding.settings.kv_events:
                self._registry.watches[binding.engine].refresh_soon()
            binding.reconfigure(model, settings)
        for binding in diff.added:
            binding.coming = False
        self._registry.refresh()

    def undo(self, diff: FleetDiff) -> None:
        """Make the fleet what it was before ``prepare``."""
        self._registry.drop(diff.added)
        for binding in diff.removed:
            binding.going = False

    # drain and restore

    def drain(self, name: str) -> Sequence[Endpoint]:
        """Give the endpoint of this name, or all on the engine of this name, no new requests, until ``restore``.

        Returns these endpoints. Raises KeyError if there is none.
        """
        return self._set_drained(name, True)

    def restore(self, name: str) -> Sequence[Endpoint]:
        """Take ``drain`` back. What the configuration drains stays drained. Returns and raises as ``drain``."""
        return self._set_drained(name, False)

    def drain_state(self, endpoint: Endpoint) -> DrainState:
        """How far the drain of an endpoint is, and what still runs there. Also for a dropped endpoint."""
        known = _known(endpoint)
        present = known.engine in self._registry.watches
        return DrainState(
            gone=not present,
            coming=present and known.binding.coming,
            by_file=known.binding.settings.drain,
            by_operator=known.drained or (present and known.engine.drained),
            running=known.running,
        )

    @property
    def all_endpoints(self) -> Sequence[Endpoint]:
        """Every endpoint, followed by the dropped ones on which our requests still run."""
        leaving = [endpoint for endpoint in self._registry.leaving if endpoint.running]
        return [*self._registry.endpoints, *sorted(leaving, key=lambda endpoint: endpoint.slot)]

    def rank_names(self) -> Mapping[str, Location]:
        """The names of endpoints on single ranks, with their engine's address: known once it has told its ranks."""
        ranked = (endpoint for endpoint in self._registry.endpoints if endpoint.rank is not None)
        return {endpoint.name: endpoint.engine.location for endpoint in ranked}

    def in_flight(self) -> dict[str, int]:
        """Requests that are placed and not settled, by the endpoint's name. Those on a dropped endpoint count for the
        one that has its name now."""
        counts: dict[str, int] = {}
        for endpoint in self._registry.endpoints:  # of one that goes and one that comes, both may have the name
            counts[endpoint.name] = counts.get(endpoint.name, 0) + endpoint.in_flight
        for endpoint in self._registry.leaving:
            if endpoint.name in counts:
                counts[endpoint.name] += endpoint.in_flight
        return counts

    @contextmanager
    def lending(self, endpoint: Endpoint) -> Iterator[None]:
        """Hold while another engine has yet to fetch KV that is computed at ``endpoint``."""
        known = _known(endpoint)
        known.lent += 1
        try:
            yield
        finally:
            known.lent -= 1

    def release_slot(self, slot: int) -> None:
        """No index has bits of the dropped endpoint that had this slot any more: another may get it.

        Raises KeyError if no dropped endpoint had it.
        """
        self._registry.slots.release(slot)

    # for requests

    def endpoints(self, model: Model) -> Sequence[Endpoint]:
        return self.by_model.get(model.name, ())

    def cost(self, endpoint: Endpoint) -> FittedCost:
        """The cost model behind ``endpoint.cost``."""
        assert isinstance(endpoint.cost, FittedCost)
        return endpoint.cost

    def bootstrap_port(self, endpoint: Endpoint) -> int:
        """The port of the bootstrap server of this endpoint's engine, where other engines learn how to fetch its KV
        (Mooncake, SGLang)."""
        return _known(endpoint).binding.settings.bootstrap_port

    def served_name(self, endpoint: Endpoint, model: Model) -> str:
        """The ``model`` of a body for this endpoint, where it names no adapter: as configured; else the model's own
        name, if the engine serves it; else the engine's first id that is no adapter."""
        if model.served_name is not None:
            return model.served_name
        served = endpoint.engine.served
        if model.name in served:
            return model.name
        return next((entry.id for entry in served.values() if entry.parent is None), model.name)

    def adapters(self, model: Model) -> Mapping[str, ServedModel]:
        """The adapters of the model's engines by id, including engines that are down."""
        return Adapters(self.endpoints(model))

    # reports of requests

    def report_refused(self, endpoint: Endpoint) -> None:
        """A connection was refused: the engine is taken out at once."""
        if watch := self._registry.watches.get(endpoint.engine):
            watch.report_refused()

    def report_broken(self, endpoint: Endpoint, why: str, waited: float | None = None) -> None:
        """An answer broke off: the engine is probed now. ``why``: a short word. ``waited``: seconds after which we gave
        up waiting; None: the engine ended it."""
        if watch := self._registry.watches.get(endpoint.engine):
            watch.report_broken(why, waited)

    def report_doubt(self, endpoint: Endpoint) -> None:
        """It may be down: it is probed now, and nothing is held against it."""
        if watch := self._registry.watches.get(endpoint.engine):
            watch.probe_soon()

    def report_head(self, endpoint: Endpoint, connect_seconds: float | None = None) -> None:
        """An answer's head came. ``connect_seconds``: what a new connection took; None: it was there already."""
        assert isinstance(endpoint, FleetEndpoint)
        engine = endpoint.engine
        engine.heard_at = self._context.clock.monotonic()
        if connect_seconds is not None:
            engine.record_connect(connect_seconds)

    def report_complete(self, endpoint: Endpoint) -> None:
        """An answer is complete."""
        assert isinstance(endpoint, FleetEndpoint)
        engine = endpoint.engine
        engine.heard_at = now = self._context.clock.monotonic()
        engine.answers.ended.append((now, False))

    async def _first_probes(self, watches: Sequence[EngineWatch]) -> None:
        """Wait until each engine was probed once, or for the scrape timeout."""
        try:
            async with asyncio.timeout(self._context.settings.scrape.timeout):
                for watch in watches:
                    if watch.running:
                        await watch.probed.wait()
        except TimeoutError:
            return

    def _set_drained(self, name: str, drained: bool) -> Sequence[Endpoint]:
        engine = next((one for one in self._registry.engines if one.name == name and not one.going), None)
        if engine is not None:
            engine.drained = drained
            meant = engine.endpoints
        else:
            meant = [endpoint for endpoint in self._registry.endpoints if endpoint.name == name]
            if not meant:
                raise KeyError(name)
        for endpoint in meant:
            endpoint.drained = drained
            self._registry.update_draining(endpoint.engine)
        self._registry.states_changed()
        return meant


def _known(endpoint: Endpoint) -> FleetEndpoint:
    assert isinstance(endpoint, FleetEndpoint)
    return endpoint
