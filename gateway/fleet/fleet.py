"""All engines and endpoints. Only the fleet creates and drops them, and hands out slots.

Rules: the sequence that ``endpoints`` returns never changes: it is replaced. An endpoint that was dropped still has all
that the requests under way to it ask of the fleet. Every background task belongs to the fleet, and ends with ``close``.
A model is known by its name: a change of configuration may bring another ``Model`` of the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

from gateway.fleet.adapters import Adapters
from gateway.fleet.address import Address
from gateway.fleet.change import Change, Drain
from gateway.fleet.core import Place
from gateway.fleet.cost import FittedCost
from gateway.fleet.estate import Estate
from gateway.fleet.kv_source import KvSource
from gateway.fleet.ledger import Ledger
from gateway.fleet.listener import FleetListener, Listeners
from gateway.fleet.probe import EngineProbe, Sessions
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.fleet.site import Site
from gateway.framework import Clock, Endpoint, Engine, Model, Observer, ServedModel, TaskSet
from gateway.framework.pauses import Pauses
from gateway.framework.tls import follow

__all__ = ["Change", "Drain", "Fleet", "FleetListener", "KvSource"]


class Fleet:
    """``models``: each with the settings of its endpoints. ``pauses``: of our own loop, once it has started.

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
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._observer = observer
        self._listeners = Listeners()
        self.pauses = Pauses()
        self._estate = Estate(settings, clock, observer, random, self._listeners, self.pauses)
        self._tasks = TaskSet()
        self._sessions: Sessions | None = None
        held = self._estate.addresses_of(models)
        for model, entries in models:
            for entry in entries:
                self._estate.create(model, entry)
        del held

    # life

    async def start(self) -> None:
        """Watch all engines; returns when each was looked at once and has as many endpoints as ranks, or after the
        scrape timeout."""
        self._sessions = Sessions(self._clock, keepalive=max(15.0, 2 * self._settings.scrape.interval))
        self._estate.open = True
        for place in self._estate.places:
            self._estate.announce(place)
        for site in self._estate.sites.values():
            self._watch(site)
        self._tasks.start(self.pauses.watch(), name="notice our own pauses")
        self._tasks.start(follow(self._estate.contexts.all), name="look at TLS files")
        await self._probed(list(self._estate.sites.values()))

    async def close(self) -> None:
        """End every task and connection. Also after a start that failed, and more than once."""
        await self._tasks.close()
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            await sessions.close()

    def listen(self, listener: FleetListener) -> None:
        """Tell ``listener`` from now on; if the fleet has started, also what it has missed."""
        self._listeners.add(listener)
        if self._sessions is None:
            return
        for place in self._estate.places:
            listener.endpoint_added(place)
            if place.source_known:
                listener.kv_source(place, place.source)

    # another configuration

    async def prepare(self, wanted: Sequence[tuple[Model, Sequence[EndpointSettings]]]) -> Change:
        """Make and watch what ``wanted`` has and the fleet lacks, until each new engine was looked at once, or for the
        scrape timeout. No request goes there before ``apply``.

        One change at a time, and each is applied or undone. Raises ConfigError as the constructor does, with nothing
        changed; nor has anything where it is cancelled.
        """
        change = Change.between(self._estate.sites.values(), wanted)
        change.addresses = self._estate.addresses_of(wanted)
        for entry in change.gone:
            entry.going = True
        try:
            for model, settings in change.lacking:
                site, entry = self._estate.create(model, settings, coming=True)
                change.added.append(entry)
                self._watch(site)
                # Each is held against all that are there, which takes 0.5 ms among 300: streams must not wait for all.
                await asyncio.sleep(0)
            engines = {entry.engine for entry in change.added}
            await self._probed([site for engine, site in self._estate.sites.items() if engine in engines])
        except BaseException:
            self.undo(change)
            raise
        return change

    def apply(self, change: Change) -> None:
        """The fleet is what was wanted, from the next request on; those under way to what is gone end in peace."""
        self._estate.take_out(change.gone)
        for entry, model, settings in change.kept:
            self._estate.sites[entry.engine].reconfigure(entry, model, settings)
        for entry in change.added:
            entry.coming = False
        for name in [name for name, places in self._estate.endpoints.items() if not places]:
            del self._estate.endpoints[name]
        for site in self._estate.sites.values():
            self._estate.share(site)
            self._estate.restart(site)
            self._estate.mark(site)
            # Who had its name before took the series of that name along.
            site.watch.report()
        self._estate.judge()

    def undo(self, change: Change) -> None:
        """The fleet is what it was before ``prepare``."""
        self._estate.take_out(change.added)
        for entry in change.gone:
            entry.going = False

    # out of use, and back

    def drain(self, name: str) -> Sequence[Endpoint]:
        """Give the endpoint of this name, or all on the engine of this name, no new requests, until ``restore``.

        Returns those that are meant. Raises KeyError if there is none.
        """
        return self._set_drained(name, True)

    def restore(self, name: str) -> Sequence[Endpoint]:
        """Take ``drain`` back; what the configuration drains stays drained. As ``drain``."""
        return self._set_drained(name, False)

    def drain_of(self, endpoint: Endpoint) -> Drain:
        """How far an endpoint is out of use, also one that was dropped, and what is left running there."""
        place = _place(endpoint)
        site = self._estate.sites.get(place.engine)
        return Drain(
            gone=site is None,
            coming=site is not None and any(entry.coming and place in entry.places for entry in site.entries),
            by_file=place.settings.drain,
            by_operator=place.drained or (site is not None and site.drained),
            running=place.running,
        )

    @property
    def all(self) -> Sequence[Endpoint]:
        """Every endpoint, and after them those of engines that are gone but have requests of ours running."""
        leaving = [place for place in self._estate.leaving if place.running]
        return [*self._estate.places, *sorted(leaving, key=lambda place: place.slot)]

    @contextmanager
    def lending(self, endpoint: Endpoint) -> Iterator[None]:
        """While another engine has yet to fetch KV that is computed at ``endpoint``."""
        place = _place(endpoint)
        place.lends += 1
        try:
            yield
        finally:
            place.lends -= 1

    def release_slot(self, slot: int) -> None:
        """No index has bits of the dropped endpoint that had this slot: it may be another's. Raises KeyError else."""
        self._estate.slots.release(slot)

    # what requests ask

    def endpoints(self, model: Model) -> Sequence[Endpoint]:
        return self._estate.endpoints.get(model.name, ())

    @property
    def engines(self) -> Sequence[Engine]:
        return list(self._estate.sites)

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

    def address(self, engine: Engine) -> Address:
        """How to connect to an engine, also one that was dropped; after a change of configuration another, maybe."""
        return self._estate.addresses[engine]

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
        return Adapters(self.endpoints(model))

    # what requests tell

    def refused(self, endpoint: Endpoint) -> None:
        """A connection was refused: the engine is out at once."""
        if site := self._estate.sites.get(endpoint.engine):
            site.watch.refused()

    def broke(self, endpoint: Endpoint, why: str, waited: float | None = None) -> None:
        """An answer broke off: the engine is looked at now. ``why``: a short word. ``waited``: seconds after which it
        was not waited for any longer; None: it ended by itself."""
        if site := self._estate.sites.get(endpoint.engine):
            site.watch.broke(why, waited)

    def answered(self, endpoint: Endpoint, connect_seconds: float | None = None) -> None:
        """An answer's head came. ``connect_seconds``: what a new connection took; None: it was there already."""
        if site := self._estate.sites.get(endpoint.engine):
            site.watch.answered(connect_seconds)

    def finished(self, endpoint: Endpoint) -> None:
        """An answer is complete."""
        if site := self._estate.sites.get(endpoint.engine):
            site.watch.finished()

    # watching

    def _watch(self, site: Site) -> None:
        site.watch.relearn()
        if site.task is not None or self._sessions is None:
            return
        timeout = self._settings.scrape.timeout
        site.probe = EngineProbe(self._sessions, site.address, site.api_key, timeout, site.watch.connected)
        site.task = self._tasks.start(site.watch.run(site.probe), name=f"watch {site.engine.name}")

    async def _probed(self, sites: Sequence[Site]) -> None:
        """Until each was looked at once, or for the scrape timeout."""
        try:
            async with asyncio.timeout(self._settings.scrape.timeout):
                for site in sites:
                    if site.task is not None:
                        await site.watch.probed.wait()
        except TimeoutError:
            return

    def _set_drained(self, name: str, drained: bool) -> Sequence[Endpoint]:
        for site in self._estate.sites.values():
            if site.engine.name == name and not site.going:
                site.drained = drained
                meant = site.watch.places
                break
        else:
            meant = [place for place in self._estate.places if place.name == name]
            if not meant:
                raise KeyError(name)
        for place in meant:
            place.drained = drained
            self._estate.mark(self._estate.sites[place.engine])
        self._estate.judge()
        return meant


def _place(endpoint: Endpoint) -> Place:
    assert isinstance(endpoint, Place)
    return endpoint
