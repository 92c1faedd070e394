"""One URL: its engine, the watch over it, and the models that name it.

Rules: one URL is one engine, watched once, however many models name it. Every core has an endpoint for each of them,
under a name that no other endpoint has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.errors import ConfigError
from gateway.fleet.address import Address, Contexts, Location
from gateway.fleet.core import Core, Place
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.probe import EngineProbe
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Engine, Model, Role


@dataclass(slots=True, eq=False)
class Entry:
    """A model on an engine. ``name``: of its endpoint there, or what all its endpoints are called before the rank.

    ``places``: its endpoints. ``coming``, ``going``: of the two configurations between which a change is prepared it is
    in the new, or in the old one only; who is coming gets no request yet, and who is going claims no name any more.
    """

    model: Model
    engine: Engine
    settings: EndpointSettings
    name: str
    places: list[Place] = field(default_factory=list)
    coming: bool = False
    going: bool = False

    def endpoint_name(self, rank: int | None) -> str:
        return self.name if rank is None else f"{self.name}/{rank}"


@dataclass(slots=True, eq=False)
class Site:
    """``address``: how to connect to ``location``, by a context of ``contexts``. ``ranks``: as configured; None: as
    many as the engine says. ``api_key``: for every endpoint that has none of its own. ``drained``: an operator has
    taken the engine out. ``task``: the watch, once it runs, which asks ``probe``."""

    location: Location
    address: Address
    contexts: Contexts
    watch: EngineWatch
    ranks: int | None
    api_key: str | None = None
    entries: list[Entry] = field(default_factory=list)
    drained: bool = False
    task: asyncio.Task[None] | None = None
    probe: EngineProbe | None = None

    @property
    def engine(self) -> Engine:
        return self.watch.engine

    @property
    def going(self) -> bool:
        """Of a change that is prepared, nothing here is in the new configuration."""
        return bool(self.entries) and all(entry.going for entry in self.entries)

    def share(self) -> None:
        """The first key that an entry names is used wherever an endpoint has none of its own, and the first TLS
        settings are the engine's. Raises ConfigError if their files cannot be used."""
        self.address = Address.of(first_of(entry.settings for entry in self.entries), self.contexts)
        self.api_key = next((entry.settings.api_key for entry in self.entries if entry.settings.api_key), None)
        for entry in self.entries:
            for place in entry.places:
                place.api_key = entry.settings.api_key or self.api_key
        if self.probe is not None:
            self.probe.use(self.address, self.api_key)

    def place(self, entry: Entry, core: Core, slot: int) -> Place:
        """A new endpoint: of this entry, on this core."""
        place = Place(
            slot=slot,
            name=entry.endpoint_name(core.rank),
            model=entry.model,
            engine=self.engine,
            load=core.ledger,
            cost=core.cost,
            rank=core.rank,
            role=Role(entry.settings.role),
            labels=dict(entry.settings.labels),
            core=core,
            settings=entry.settings,
            api_key=entry.settings.api_key or self.api_key,
        )
        if core.places:
            # The core has been there for another model: what is known of it holds for this one too.
            place.metrics = core.places[0].metrics
            place.warmth = core.places[0].warmth
        core.places.append(place)
        entry.places.append(place)
        place.draining = self.drains(entry, place)
        return place

    def drains(self, entry: Entry, place: Place) -> bool:
        """Whether an endpoint of ``entry`` is to get no new requests, and be none the worse for it."""
        return entry.coming or entry.settings.drain or self.drained or place.drained

    def reconfigure(self, entry: Entry, model: Model, settings: EndpointSettings) -> None:
        """What may change while an endpoint goes on: all but its URL, its name and its number of ranks."""
        listens = entry.settings.kv_events
        entry.model, entry.settings = model, settings
        for place in entry.places:
            place.model, place.settings = model, settings
            place.role, place.labels = Role(settings.role), dict(settings.labels)
        if settings.kv_events != listens:
            self.watch.relearn()


def first_of(settings: Iterable[EndpointSettings]) -> EndpointSettings:
    """Of an engine's entries the first with TLS settings, or the first."""
    known = list(settings)
    return next((one for one in known if one.tls is not None), known[0])


class Names:
    """The names that endpoints have, or may get when an engine turns out to have ranks."""

    def __init__(self, sites: Iterable[Site]) -> None:
        self._taken: dict[str, Entry] = {}
        for site in sites:
            for entry in site.entries:
                if entry.going:
                    continue
                self._taken[entry.name] = entry
                for core in site.watch.cores:
                    self._taken[entry.endpoint_name(core.rank)] = entry

    def choose(self, model: Model, settings: EndpointSettings, site: Site) -> Entry:
        """The entry's name, or the engine's; with the model's where another model on the engine has that.

        Raises ConfigError if an endpoint elsewhere has it.
        """
        base = settings.name or site.engine.name
        for name in (base, f"{base}@{model.name}"):
            entry = Entry(model, site.engine, settings, name)
            other = self._taken.get(name) or self._other(entry, [core.rank for core in site.watch.cores])
            if other is None:
                return entry
            if other.engine is not site.engine:
                break
        assert other is not None
        raise same_name(other.engine, site.engine, base)

    def check(self, entries: Iterable[Entry], ranks: Sequence[int | None]) -> None:
        """Raises ConfigError if others have a name that these entries' endpoints would get with ``ranks``."""
        for entry in entries:
            if other := self._other(entry, ranks):
                raise same_name(other.engine, entry.engine, other.name)

    def _other(self, entry: Entry, ranks: Sequence[int | None]) -> Entry | None:
        owners = (self._taken.get(entry.endpoint_name(rank)) for rank in ranks)
        return next((owner for owner in owners if owner is not None and owner is not entry), None)


def same_name(one: Engine, other: Engine, name: str) -> ConfigError:
    return ConfigError(f"endpoints {one.url} and {other.url} both have the name {name}: give each its own")
