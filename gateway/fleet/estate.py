"""The sites, and the endpoints that stand on them: how they are made and taken away, and nothing of when.

Rules: the tuple of a model's endpoints never changes: it is replaced. What cannot be made raises ConfigError, and
leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from gateway.errors import ConfigError
from gateway.fleet.address import Address, Contexts, Location
from gateway.fleet.core import Core, Place
from gateway.fleet.cost import FittedCost
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.fit import Peers
from gateway.fleet.hardware import Costs, starting
from gateway.fleet.health import Health
from gateway.fleet.ledger import Ledger
from gateway.fleet.listener import Listeners
from gateway.fleet.outliers import spared
from gateway.fleet.ranks import ranks_of
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.fleet.site import Entry, Names, Site, same_name
from gateway.fleet.slots import Slots
from gateway.framework import Clock, Engine, Model, Observer, Role
from gateway.framework.pauses import Pauses

FOREIGN_HALF_LIFE = 5.0
"""Scrape intervals after which foreign load counts half: one lost scrape changes it by an eighth."""


class Estate:
    """``sites`` by engine; ``endpoints`` by the name of their model. ``leaving``: endpoints that were taken away while
    requests ran there, kept by these only. ``addresses``: also of engines that are gone, as long as anyone has to do
    with them. ``open``: endpoints are announced as they are made."""

    def __init__(
        self,
        settings: FleetSettings,
        clock: Clock,
        observer: Observer,
        random: Random,
        listeners: Listeners,
        pauses: Pauses,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._random = random
        self._listeners = listeners
        self._pauses = pauses
        self._peers: WeakValueDictionary[tuple[str, str, Costs], Peers] = WeakValueDictionary()
        self.open = False
        self.slots = Slots()
        self.sites: dict[Engine, Site] = {}
        self.contexts = Contexts()
        self.addresses: WeakKeyDictionary[Engine, Address] = WeakKeyDictionary()
        self.endpoints: dict[str, tuple[Place, ...]] = {}
        self.leaving: WeakSet[Place] = WeakSet()

    @property
    def places(self) -> list[Place]:
        return [place for places in self.endpoints.values() for place in places]

    def addresses_of(self, wanted: Sequence[tuple[Model, Sequence[EndpointSettings]]]) -> list[Address]:
        """How to connect to all the engines of ``wanted``; as long as anyone has them, ``share`` cannot fail by them.

        Raises ConfigError if TLS files cannot be used, or two models disagree about an engine's TLS.
        """
        found: dict[Location, EndpointSettings] = {}
        for model, endpoints in wanted:
            for settings in endpoints:
                known = found.setdefault(location := Location.of(settings.url), settings)
                if known.tls is None:
                    found[location] = settings
                elif settings.tls not in (None, known.tls):
                    raise ConfigError(
                        f"model {model.name}: endpoint {location.url} has another tls than with another model"
                    )
        return [Address.of(settings, self.contexts) for settings in found.values()]

    # making

    def create(self, model: Model, settings: EndpointSettings, *, coming: bool = False) -> tuple[Site, Entry]:
        """An entry and its endpoints. Raises ConfigError as ``Fleet`` does."""
        site = self._site(model, settings)
        try:
            entry = Names(self.sites.values()).choose(model, settings, site)
        except ConfigError:
            self._clean_up(site)
            raise
        entry.coming = coming
        site.entries.append(entry)
        places = self._stand(site, [entry], site.watch.cores)
        self.share(site)
        if self.open:
            for place in places:
                self.announce(place)
        return site, entry

    def announce(self, place: Place) -> None:
        self._listeners.endpoint_added(place)
        self._observer.draining(place.name, place.draining)

    def mark(self, site: Site) -> None:
        """Tell the endpoints of ``site`` whether they are to get requests."""
        for entry in site.entries:
            for place in entry.places:
                place.draining = site.drains(entry, place)
                if self.open:
                    self._observer.draining(place.name, place.draining)

    def judge(self) -> None:
        """Tell each engine whether it is spared: of a model's endpoints of one role at most half are ejected."""
        sites = self.sites.values()
        if not any(site.watch.health.ejected or site.engine.spared for site in sites):
            return
        groups: dict[tuple[str, Role], dict[Health, None]] = {}
        for name, places in self.endpoints.items():
            for place in places:
                if not place.draining and (site := self.sites.get(place.engine)) is not None:
                    groups.setdefault((name, place.role), {})[site.watch.health] = None
        kept = spared(groups.values())
        for site in sites:
            site.watch.use(spared=site.watch.health in kept)

    def share(self, site: Site) -> None:
        """Tell the endpoints of ``site`` what its entries say together. Raises ConfigError as ``Site.share`` does."""
        site.share()
        self.addresses[site.engine] = site.address

    def restart(self, site: Site) -> None:
        """A core's speed is what the first of its entries says: begin again where that is another."""
        first = site.entries[0]
        for core in site.watch.cores:
            core.cost.restart(*self._believed(first.model, first.settings))

    def _site(self, model: Model, settings: EndpointSettings) -> Site:
        """The engine at this URL: the one that is known, or a new one."""
        location = Location.of(settings.url)
        site = next((site for site in self.sites.values() if site.location == location and not site.going), None)
        if site is not None:
            if any(entry.model.name == model.name and not entry.going for entry in site.entries):
                raise ConfigError(f"model {model.name}: endpoint {site.engine.url} is listed twice")
            if site.ranks != settings.ranks:
                raise ConfigError(
                    f"model {model.name}: endpoint {site.engine.url} {_said(settings.ranks)}, "
                    f"but another model {_said(site.ranks)}"
                )
            return site
        address = Address.of(settings, self.contexts)
        engine = Engine(url=location.url, name=settings.name or location.authority)
        for other in self.sites.values():
            if other.engine.name == engine.name and not other.going:
                raise same_name(other.engine, engine, engine.name)
        watch = EngineWatch(
            engine,
            self._settings,
            clock=self._clock,
            observer=self._observer,
            random=self._random,
            listeners=self._listeners,
            judge=self.judge,
            pauses=self._pauses,
            ranks_are=partial(self._ranks_are, engine) if settings.ranks is None else None,
        )
        watch.cores = [self._core(model, settings, rank) for rank in ranks_of(settings.ranks or 1)]
        site = self.sites[engine] = Site(location, address, self.contexts, watch, settings.ranks)
        return site

    def _core(self, model: Model, settings: EndpointSettings, rank: int | None) -> Core:
        half_life = FOREIGN_HALF_LIFE * self._settings.scrape.interval
        return Core(rank, Ledger(self._clock, half_life), FittedCost(*self._believed(model, settings)))

    def _believed(self, model: Model, settings: EndpointSettings) -> tuple[Costs, Peers]:
        """What a core of this endpoint costs at first, and who sees the same."""
        start = starting((settings.cost, self._settings.cost), lambda: None)
        return start, self._peers.setdefault((model.name, settings.role, start), Peers())

    def _stand(self, site: Site, entries: Sequence[Entry], cores: Sequence[Core]) -> list[Place]:
        """New endpoints, of each entry on each core."""
        created = []
        for entry in entries:
            name = entry.model.name
            places = [site.place(entry, core, self.slots.take()) for core in cores]
            self.endpoints[name] = (*self.endpoints.get(name, ()), *places)
            created += places
        return created

    def _ranks_are(self, engine: Engine, number: int) -> None:
        """The engine has this many ranks: makes cores and endpoints for those that are new, drops those of others.

        Raises ConfigError, with nothing changed, if a new endpoint would have another's name.
        """
        site, ranks = self.sites[engine], ranks_of(number)
        Names(self.sites.values()).check([entry for entry in site.entries if not entry.going], ranks)
        before = {core.rank: core for core in site.watch.cores}
        first = site.entries[0]
        cores = [before.get(rank) or self._core(first.model, first.settings, rank) for rank in ranks]
        for place in self._stand(site, site.entries, [core for core in cores if core.rank not in before]):
            self.announce(place)
        for core in before.values():
            if core not in cores:
                for place in tuple(core.places):
                    self._take_away(place)
        site.watch.cores = cores

    # taking away

    def _take_away(self, place: Place) -> None:
        name, ledger = place.model.name, place.core.ledger
        place.core.places.remove(place)
        for entry in self.sites[place.engine].entries:
            if place in entry.places:
                entry.places.remove(place)
        self.endpoints[name] = tuple(other for other in self.endpoints[name] if other is not place)
        self.slots.rest(place.slot, busy=lambda: ledger.requests > 0)
        if place.running:
            self.leaving.add(place)
        self._listeners.endpoint_dropped(place)
        if not any(other.name == place.name for other in self.places):
            self._observer.endpoint_dropped(place.name)

    def take_out(self, entries: Sequence[Entry]) -> None:
        """All endpoints of ``entries``, and the engines on which none is left."""
        for entry in entries:
            for place in tuple(entry.places):
                self._take_away(place)
        for engine in {entry.engine for entry in entries} & self.sites.keys():
            self._clean_up(self.sites[engine])

    def _clean_up(self, site: Site) -> None:
        """Forget the models that have no endpoint at ``site`` any more, and with the last one the engine."""
        site.entries = [entry for entry in site.entries if entry.places]
        if site.entries:
            self.share(site)
            return
        del self.sites[site.engine]
        if site.task is not None:
            site.task.cancel()
        if not any(engine.name == site.engine.name for engine in self.sites):
            self._observer.engine_dropped(site.engine.name)


def _said(ranks: int | None) -> str:
    return "leaves ranks to the engine" if ranks is None else f"says ranks: {ranks}"
