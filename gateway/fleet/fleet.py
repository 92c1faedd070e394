"""All engines and endpoints. Only the fleet creates and drops them, and hands out slots.

Rules: the sequence that ``endpoints`` returns never changes: it is replaced. An endpoint that was dropped still has all
that the requests under way to it ask of the fleet. Every background task belongs to the fleet, and ends with ``close``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

import aiohttp

from gateway.errors import ConfigError
from gateway.fleet.core import Core, Place
from gateway.fleet.cost import FittedCost, Peers
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.kv_source import KvSource
from gateway.fleet.ledger import Ledger
from gateway.fleet.listener import FleetListener, Listeners
from gateway.fleet.probe import EngineProbe, open_session
from gateway.fleet.ranks import ranks_of
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.fleet.site import Address, Entry, Names, Site, same_name
from gateway.fleet.slots import Slots
from gateway.framework import Clock, Endpoint, Engine, Model, Observer, ServedModel, TaskSet

__all__ = ["Fleet", "FleetListener", "KvSource"]

FOREIGN_HALF_LIFE = 5.0
"""Scrape intervals after which foreign load counts half: one lost scrape changes it by an eighth."""


class Fleet:
    """``models``: each with the settings of its endpoints.

    Raises ConfigError where names clash, a model names a URL twice, or two models disagree about an engine's ranks.
    """

    def __init__(
        self,
        models: Sequence[tuple[Model, Sequence[EndpointSettings]]],
        settings: FleetSettings,
        clock: Clock,
        observer: Observer,
        random: Random,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._random = random
        self._listeners = Listeners()
        self._slots = Slots()
        self._tasks = TaskSet()
        self._session: aiohttp.ClientSession | None = None
        self._sites: dict[Engine, Site] = {}
        self._peers: dict[tuple[Model, str], Peers] = {}
        self._endpoints: dict[Model, tuple[Place, ...]] = {model: () for model, _ in models}
        for model, entries in models:
            for entry in entries:
                self._create(model, entry)

    # life

    async def start(self) -> None:
        """Watch all engines; returns when each was looked at once and has as many endpoints as ranks, or after the
        scrape timeout."""
        self._session = open_session(self._clock, keepalive=max(15.0, 2 * self._settings.scrape.interval))
        for place in self._places():
            self._listeners.endpoint_added(place)
        for site in self._sites.values():
            self._watch(site)
        try:
            async with asyncio.timeout(self._settings.scrape.timeout):
                for site in list(self._sites.values()):
                    await site.watch.probed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """End every task and connection. Also after a start that failed, and more than once."""
        await self._tasks.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def listen(self, listener: FleetListener) -> None:
        """Tell ``listener`` from now on; if the fleet has started, also what it has missed."""
        self._listeners.add(listener)
        if self._session is None:
            return
        for place in self._places():
            listener.endpoint_added(place)
            if place.source_known:
                listener.kv_source(place, place.source)

    # endpoints come and go

    def add(self, model: Model, settings: EndpointSettings) -> Sequence[Endpoint]:
        """Add the endpoints of one more entry: one for each rank that is known. Raises ConfigError as the constructor
        does."""
        self._endpoints.setdefault(model, ())
        site, created = self._create(model, settings)
        if self._session is not None:
            for place in created:
                self._listeners.endpoint_added(place)
            self._watch(site)
        return created

    def drop(self, endpoint: Endpoint) -> None:
        """Take one endpoint away; its engine too if that was the last on it. Its requests may end in peace.

        Raises KeyError if it was dropped before.
        """
        place = _place(endpoint)
        if place not in self._endpoints.get(place.model, ()):
            raise KeyError(f"{place.name} is not an endpoint any more")
        self._take_away(place)
        self._clean_up(self._sites[place.engine])

    def release_slot(self, slot: int) -> None:
        """No index has bits of the dropped endpoint that had this slot: it may be another's. Raises KeyError else."""
        self._slots.release(slot)

    # what requests ask

    def endpoints(self, model: Model) -> Sequence[Endpoint]:
        return self._endpoints.get(model, ())

    @property
    def engines(self) -> Sequence[Engine]:
        return list(self._sites)

    def ready(self, model: Model) -> int:
        """How many of the model's endpoints can be used now."""
        return sum(endpoint.engine.up and not endpoint.draining for endpoint in self.endpoints(model))

    def ledger(self, endpoint: Endpoint) -> Ledger:
        """The ledger behind ``endpoint.load``: also of a dropped endpoint, whose requests have yet to end."""
        assert isinstance(endpoint.load, Ledger)
        return endpoint.load

    def cost(self, endpoint: Endpoint) -> FittedCost:
        """The cost model behind ``endpoint.cost``."""
        assert isinstance(endpoint.cost, FittedCost)
        return endpoint.cost

    def api_key(self, endpoint: Endpoint) -> str | None:
        """The key for requests to this endpoint's engine."""
        return _place(endpoint).api_key

    def bootstrap_port(self, endpoint: Endpoint) -> int:
        """Where this endpoint's engine tells other engines how to fetch its KV (Mooncake, SGLang)."""
        return _place(endpoint).settings.bootstrap_port

    def served_name(self, endpoint: Endpoint, model: Model, adapter: str | None = None) -> str:
        """The ``model`` of a body for this endpoint: the adapter; else as configured; else the model's own name, if
        the engine serves it; else the engine's first id that is no adapter."""
        if adapter is not None:
            return adapter
        if model.served_name is not None:
            return model.served_name
        served = endpoint.engine.served
        if model.name in served:
            return model.name
        return next((entry.id for entry in served.values() if entry.parent is None), model.name)

    def adapters(self, model: Model) -> Mapping[str, ServedModel]:
        """By id: what the model's engines serve beside their base model, those that are down included."""
        found: dict[str, ServedModel] = {}
        for endpoint in self.endpoints(model):
            for entry in endpoint.engine.served.values():
                if entry.parent is not None:
                    found.setdefault(entry.id, entry)
        return found

    # what requests tell

    def refused(self, endpoint: Endpoint) -> None:
        """A connection was refused: the engine is out at once."""
        if site := self._sites.get(endpoint.engine):
            site.watch.refused()

    def broke(self, endpoint: Endpoint, why: str) -> None:
        """An answer broke off: the engine is looked at now. ``why``: a short word."""
        if site := self._sites.get(endpoint.engine):
            site.watch.broke(why)

    def answered(self, endpoint: Endpoint, connect_seconds: float | None = None) -> None:
        """An answer's head came. ``connect_seconds``: what a new connection took; None: it was there already."""
        if site := self._sites.get(endpoint.engine):
            site.watch.answered(connect_seconds)

    # making

    def _create(self, model: Model, settings: EndpointSettings) -> tuple[Site, list[Place]]:
        site = self._site(model, settings)
        try:
            entry = Names(self._sites.values()).choose(model, settings, site)
        except ConfigError:
            self._clean_up(site)
            raise
        site.entries.append(entry)
        site.give_key(settings.api_key)
        return site, self._stand(site, [entry], site.watch.cores)

    def _site(self, model: Model, settings: EndpointSettings) -> Site:
        """The engine at this URL: the one that is known, or a new one."""
        address = Address.of(settings.url)
        site = next((site for site in self._sites.values() if site.address == address), None)
        if site is not None:
            if any(entry.model is model for entry in site.entries):
                raise ConfigError(f"model {model.name}: endpoint {site.engine.url} is listed twice")
            if site.ranks != settings.ranks:
                raise ConfigError(
                    f"model {model.name}: endpoint {site.engine.url} {_said(settings.ranks)}, "
                    f"but another model {_said(site.ranks)}"
                )
            return site
        engine = Engine(url=address.url, name=settings.name or address.authority)
        for other in self._sites:
            if other.name == engine.name:
                raise same_name(other, engine, engine.name)
        watch = EngineWatch(
            engine,
            self._settings,
            clock=self._clock,
            observer=self._observer,
            random=self._random,
            listeners=self._listeners,
            ranks_are=partial(self._ranks_are, engine) if settings.ranks is None else None,
        )
        watch.cores = [self._core(model, settings, rank) for rank in ranks_of(settings.ranks or 1)]
        site = self._sites[engine] = Site(address, watch, settings.ranks)
        return site

    def _core(self, model: Model, settings: EndpointSettings, rank: int | None) -> Core:
        half_life = FOREIGN_HALF_LIFE * self._settings.scrape.interval
        peers = self._peers.setdefault((model, settings.role), Peers())
        return Core(rank, Ledger(self._clock, half_life), FittedCost(self._settings.cost, peers))

    def _stand(self, site: Site, entries: Sequence[Entry], cores: Sequence[Core]) -> list[Place]:
        """New endpoints, of each entry on each core."""
        created = []
        for entry in entries:
            places = [site.place(entry, core, self._slots.take()) for core in cores]
            self._endpoints[entry.model] = (*self._endpoints[entry.model], *places)
            created += places
        return created

    def _ranks_are(self, engine: Engine, number: int) -> None:
        """The engine has this many ranks: makes cores and endpoints for those that are new, drops those of others.

        Raises ConfigError, with nothing changed, if a new endpoint would have another's name.
        """
        site, ranks = self._sites[engine], ranks_of(number)
        Names(self._sites.values()).check(site.entries, ranks)
        before = {core.rank: core for core in site.watch.cores}
        first = site.entries[0]
        cores = [before.get(rank) or self._core(first.model, first.settings, rank) for rank in ranks]
        for place in self._stand(site, site.entries, [core for core in cores if core.rank not in before]):
            self._listeners.endpoint_added(place)
        for core in before.values():
            if core not in cores:
                for place in tuple(core.places):
                    self._take_away(place)
        site.watch.cores = cores
        self._clean_up(site)

    def _take_away(self, place: Place) -> None:
        place.core.places.remove(place)
        self._endpoints[place.model] = tuple(other for other in self._endpoints[place.model] if other is not place)
        ledger = place.core.ledger
        self._slots.rest(place.slot, busy=lambda: ledger.requests > 0)
        self._listeners.endpoint_dropped(place)
        self._observer.endpoint_dropped(place.name)

    def _clean_up(self, site: Site) -> None:
        """Forget the models that have no endpoint at ``site`` any more, and with the last one the engine."""
        site.forget_entries()
        if site.entries:
            return
        del self._sites[site.engine]
        if site.task is not None:
            site.task.cancel()
        self._observer.engine_dropped(site.engine.name)

    def _watch(self, site: Site) -> None:
        if site.task is not None or self._session is None:
            return
        probe = EngineProbe(
            self._session, site.engine.url, site.api_key, self._settings.scrape.timeout, site.watch.connected
        )
        site.task = self._tasks.start(site.watch.run(probe), name=f"watch {site.engine.name}")

    def _places(self) -> list[Place]:
        return [place for places in self._endpoints.values() for place in places]


def _place(endpoint: Endpoint) -> Place:
    assert isinstance(endpoint, Place)
    return endpoint


def _said(ranks: int | None) -> str:
    return "leaves ranks to the engine" if ranks is None else f"says ranks: {ranks}"
