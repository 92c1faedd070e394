"""All engines and endpoints. Only the fleet creates and drops them, and hands out slots.

Rules: one URL is one engine, watched once, however many models name it. The sequence that ``endpoints`` returns never
changes: it is replaced. Every background task belongs to the fleet, and ends with ``close``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from urllib.parse import SplitResult, urlsplit

import aiohttp

from gateway.errors import ConfigError
from gateway.fleet.core import Core, Place
from gateway.fleet.cost import FittedCost, Peers
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.kv_source import KvSource
from gateway.fleet.ledger import Ledger
from gateway.fleet.listener import FleetListener, Listeners
from gateway.fleet.probe import EngineProbe, open_session
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.fleet.slots import Slots
from gateway.framework import Clock, Endpoint, Engine, Model, Observer, Role, ServedModel, TaskSet

__all__ = ["Fleet", "FleetListener", "KvSource"]

DEFAULT_PORTS = {"http": 80, "https": 443}

FOREIGN_HALF_LIFE = 5.0
"""Scrape intervals after which foreign load counts half: one lost scrape changes it by an eighth."""


@dataclass(slots=True, eq=False)
class _Watched:
    """An engine, its watch, and the key that its probe uses."""

    watch: EngineWatch
    ranks: int | None
    api_key: str | None
    task: asyncio.Task[None] | None = None


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
        self._engines: dict[tuple[str, str, int], _Watched] = {}
        self._peers: dict[tuple[Model, str], Peers] = {}
        self._endpoints: dict[Model, tuple[Endpoint, ...]] = {model: () for model, _ in models}
        self._places: dict[Endpoint, tuple[Place, Core, _Watched]] = {}
        for model, entries in models:
            for entry in entries:
                self._create(model, entry)

    # life

    async def start(self) -> None:
        """Watch all engines; returns when each was looked at once, or after the scrape timeout."""
        self._session = open_session(self._clock, keepalive=max(15.0, 2 * self._settings.scrape.interval))
        for endpoint in self._places:
            self._listeners.endpoint_added(endpoint)
        for watched in self._engines.values():
            self._watch(watched)
        try:
            async with asyncio.timeout(self._settings.scrape.timeout):
                for watched in list(self._engines.values()):
                    await watched.watch.probed.wait()
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
        for endpoint, (place, _, _) in self._places.items():
            listener.endpoint_added(endpoint)
            if place.source_known:
                listener.kv_source(endpoint, place.source)

    # endpoints come and go

    def add(self, model: Model, settings: EndpointSettings) -> Sequence[Endpoint]:
        """Add the endpoints of one more entry: one for each rank. Raises ConfigError as the constructor does."""
        self._endpoints.setdefault(model, ())
        created = self._create(model, settings)
        if self._session is not None:
            for endpoint in created:
                self._listeners.endpoint_added(endpoint)
            self._watch(self._places[created[0]][2])
        return created

    def drop(self, endpoint: Endpoint) -> None:
        """Take one endpoint away; its engine too if that was the last on it. Its requests may end in peace."""
        place, core, watched = self._places.pop(endpoint)
        core.places.remove(place)
        others = self._endpoints[endpoint.model]
        self._endpoints[endpoint.model] = tuple(other for other in others if other is not endpoint)
        if not any(core.places for core in watched.watch.cores):
            self._engines = {key: value for key, value in self._engines.items() if value is not watched}
            if watched.task is not None:
                watched.task.cancel()
            self._observer.engine_dropped(watched.watch.engine.name)
        self._slots.rest(endpoint.slot)
        self._listeners.endpoint_dropped(endpoint)
        self._observer.endpoint_dropped(endpoint.name)

    def release_slot(self, slot: int) -> None:
        """No index has bits of the dropped endpoint that had this slot: it may be another's. Raises KeyError else."""
        self._slots.release(slot)

    # what requests ask

    def endpoints(self, model: Model) -> Sequence[Endpoint]:
        return self._endpoints.get(model, ())

    @property
    def engines(self) -> Sequence[Engine]:
        return [watched.watch.engine for watched in self._engines.values()]

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
        found = self._places.get(endpoint)
        return None if found is None else found[0].settings.api_key or found[2].api_key

    def bootstrap_port(self, endpoint: Endpoint) -> int:
        """Where this endpoint's engine tells other engines how to fetch its KV (Mooncake, SGLang). Raises KeyError."""
        return self._places[endpoint][0].settings.bootstrap_port

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
        if found := self._places.get(endpoint):
            found[2].watch.refused()

    def broke(self, endpoint: Endpoint, why: str) -> None:
        """An answer broke off: the engine is looked at now. ``why``: a short word."""
        if found := self._places.get(endpoint):
            found[2].watch.broke(why)

    def answered(self, endpoint: Endpoint, connect_seconds: float | None = None) -> None:
        """An answer's head came. ``connect_seconds``: what a new connection took; None: it was there already."""
        if found := self._places.get(endpoint):
            found[2].watch.answered(connect_seconds)

    # making

    def _create(self, model: Model, settings: EndpointSettings) -> list[Endpoint]:
        watched = self._engine(model, settings)
        created = []
        for core, name in zip(watched.watch.cores, self._names(model, settings, watched), strict=True):
            endpoint = Endpoint(
                slot=self._slots.take(),
                name=name,
                model=model,
                engine=watched.watch.engine,
                load=core.ledger,
                cost=core.cost,
                rank=core.rank,
                role=Role(settings.role),
                labels=dict(settings.labels),
            )
            if core.places:
                # The core has been there for another model: what is known of it holds for this one too.
                endpoint.metrics = core.places[0].endpoint.metrics
                endpoint.warmth = core.places[0].endpoint.warmth
            place = Place(endpoint, settings)
            core.places.append(place)
            self._places[endpoint] = place, core, watched
            created.append(endpoint)
        self._endpoints[model] = (*self._endpoints[model], *created)
        return created

    def _engine(self, model: Model, settings: EndpointSettings) -> _Watched:
        """The engine at this URL: the one that is known, or a new one."""
        parts = urlsplit(settings.url)
        host, port = _address(parts)
        key = parts.scheme, host, port
        if watched := self._engines.get(key):
            engine = watched.watch.engine
            if any(endpoint.engine is engine for endpoint in self._endpoints[model]):
                raise ConfigError(f"model {model.name}: endpoint {engine.url} is listed twice")
            if watched.ranks != settings.ranks:
                raise ConfigError(
                    f"model {model.name}: endpoint {engine.url} has ranks: {settings.ranks}, "
                    f"but another model says ranks: {watched.ranks}"
                )
            watched.api_key = watched.api_key or settings.api_key
            return watched
        bracketed = f"[{host}]" if ":" in host else host
        url = f"{parts.scheme}://{bracketed}" + (f":{parts.port}" if parts.port is not None else "")
        name = settings.name or f"{bracketed}:{port}"
        for other in self.engines:
            if other.name == name:
                raise ConfigError(f"endpoints {other.url} and {url} both have the name {name}: give each its own")
        watch = EngineWatch(
            Engine(url=url, name=name),
            self._settings,
            clock=self._clock,
            observer=self._observer,
            random=self._random,
            listeners=self._listeners,
        )
        half_life = FOREIGN_HALF_LIFE * self._settings.scrape.interval
        peers = self._peers.setdefault((model, settings.role), Peers())
        watch.cores = [
            Core(rank, Ledger(self._clock, half_life), FittedCost(self._settings.cost, peers))
            for rank in (range(settings.ranks) if settings.ranks is not None and settings.ranks > 1 else (None,))
        ]
        watched = self._engines[key] = _Watched(watch, settings.ranks, settings.api_key)
        return watched

    def _names(self, model: Model, settings: EndpointSettings, watched: _Watched) -> list[str]:
        """Of the new endpoints: the engine's name and the rank; with the model's where another model has taken that."""
        engine = watched.watch.engine
        base = settings.name or engine.name
        taken = {endpoint.name: endpoint.engine for endpoint in self._places}
        for candidate in (base, f"{base}@{model.name}"):
            names = [candidate if core.rank is None else f"{candidate}/{core.rank}" for core in watched.watch.cores]
            owners = [taken[name] for name in names if name in taken]
            if not owners:
                return names
            if owners[0] is not engine:
                break
        raise ConfigError(f"endpoints {owners[0].url} and {engine.url} both have the name {base}: give each its own")

    def _watch(self, watched: _Watched) -> None:
        if watched.task is not None or self._session is None:
            return
        engine = watched.watch.engine
        probe = EngineProbe(
            self._session,
            engine.url,
            watched.api_key,
            self._settings.scrape.timeout,
            watched.watch.connected,
        )
        watched.task = self._tasks.start(watched.watch.run(probe), name=f"watch {engine.name}")


def _address(parts: SplitResult) -> tuple[str, int]:
    """Host and port that a URL means, so that two spellings of it are one engine."""
    return (parts.hostname or "").lower(), parts.port or DEFAULT_PORTS[parts.scheme]
