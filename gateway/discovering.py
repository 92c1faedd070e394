"""Brings what is found into the fleet: it is merged with the endpoints of the configuration in force, and goes the way
of a reload (``Fleet.prepare``, ``Fleet.apply``), under the same lock, without another wiring."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gateway.config.settings import Config
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.signal import Signal
from gateway.core.source_view import SourceView
from gateway.core.tasks import TaskSet
from gateway.discovery.discovery import Discovery, Following
from gateway.discovery.follower import SHOWN
from gateway.discovery.merge import Merged, Offer, merge
from gateway.discovery.registered import Registered
from gateway.discovery.sources import source_of
from gateway.errors import ConfigError
from gateway.fleet.address import Address, Location, TlsContexts
from gateway.fleet.fleet import Fleet, FleetDiff
from gateway.fleet.settings import EndpointSettings, TlsSettings
from gateway.framework import Clock
from gateway.objectives import FoundObjectives
from gateway.pricing import priced
from gateway.proxy.serving.model_directory import ModelRuntime

log = logging.getLogger("kvgate.discovery")

QUIET = 0.2
"""Seconds without a change after which what has changed is brought into the fleet: five hundred pods that start, told
one after the other, are one change and not five hundred."""

MOST = 2.0
"""Seconds after the first change at which that is done anyway: they may never be quiet."""

RETRY = 10.0
"""Seconds after which what could not be brought into the fleet is tried again: a file of TLS may be there by then."""


class Discovering:
    """``discovery``: what is found. ``config``: the one in force, with what is found under ``endpoints``.
    ``objectives``: follows what is found of priorities."""

    def __init__(self, config: Config, fleet: Fleet, objectives: FoundObjectives, clock: Clock) -> None:
        self.config = config
        self.notes: Sequence[str] = []
        """What was left out or renamed, in words."""
        self._fleet = fleet
        self._objectives = objectives
        self._clock = clock
        self._changed = Signal()
        self._tasks = TaskSet()
        self._retry = False
        self._often = LogLimit(clock)
        self.discovery = Discovery(clock, partial(source_of, clock=clock), self._changed.set)

    def open(self) -> None:
        """Ask the sources, while all else is loaded."""
        self._objectives.follow(self.config)
        self.discovery.adopt(self.prepare(self.config))

    async def once(self) -> None:
        """Ask the sources and add what they tell to ``config``, for who only looks: the fleet has nothing of it."""
        self.open()
        await self.discovery.following.told()
        self.config, self.notes = self._joined(self.config, self.discovery.offers(self.discovery.following))

    async def start(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Bring what is found into the fleet, now and with each change. Returns when each source has told its first
        list, or after a few seconds. ``refresh``: has the fleet follow what is found; raises ConfigError."""
        await self.discovery.following.told()
        await self._bring(refresh)
        self._tasks.start(self._follow(refresh), name="bring what is found into the fleet")

    async def close(self) -> None:
        await self._tasks.close()
        await self.discovery.close()
        await self._objectives.close()

    # another configuration, or another list

    def prepare(self, config: Config) -> Following:
        """The sources of ``config``, followed from now on; ``adopt`` or ``discard`` comes next."""
        return self.discovery.prepare([(model.name, model.discover) for model in config.models])

    def differs(self, config: Config) -> bool:
        """Whether what is found now, added to ``config``, is other than what is in force, or else is left out."""
        whole, notes = self._joined(config, self.discovery.offers(self.discovery.following))
        return whole.models != self.config.models or notes != self.notes

    async def found(
        self, config: Config, runtimes: Sequence[ModelRuntime], following: Following
    ) -> tuple[Config, FleetDiff, Sequence[str]]:
        """``config`` with what is found, the change that brings it into the fleet, prepared, and what is left out.
        Raises ConfigError, also for what is found."""
        offers = self.discovery.offers(following)
        whole, notes = self._joined(config, offers)
        try:
            return whole, await self._prepared(whole, runtimes), notes
        except ConfigError:
            unusable = await asyncio.to_thread(_unusable, offers)
            if not unusable:
                raise
        self._retry = True
        offers = [
            replace(offer, endpoints=[one for one in offer.endpoints if _key(one.tls) not in unusable])
            for offer in offers
        ]
        whole, notes = self._joined(config, offers)
        return whole, await self._prepared(whole, runtimes), [*notes, *unusable.values()]

    def adopt(self, whole: Config, following: Following, notes: Sequence[str]) -> None:
        """These are in force."""
        self.config = whole
        self.discovery.adopt(following)
        self._objectives.follow(whole)
        known = set(self.notes)
        fresh = [note for note in notes if note not in known]
        for note in fresh[:SHOWN]:
            log.warning("%s", note)
        if len(fresh) > SHOWN:
            log.warning("%d more are left out or renamed: GET /discovery lists them", len(fresh) - SHOWN)
        self.notes = notes

    def _joined(self, config: Config, offers: Sequence[Offer]) -> tuple[Config, Sequence[str]]:
        """``config`` with what is found under ``endpoints``, and what is left out."""
        static = [(model.name, model.endpoints) for model in config.models]
        listens = config.kv_events.listen is not None
        merged: Merged = merge(static, offers, listens=listens, ranked=self._fleet.rank_names())
        models = tuple(replace(model, endpoints=merged.endpoints[model.name]) for model in config.models)
        return replace(config, models=models), merged.notes

    async def _prepared(self, whole: Config, runtimes: Sequence[ModelRuntime]) -> FleetDiff:
        # In a thread: a model's shape may have to be read from the hub.
        return await self._fleet.prepare(await asyncio.to_thread(priced, whole, runtimes))

    async def _follow(self, refresh: Callable[[], Awaitable[None]]) -> None:
        while True:
            left = self.discovery.registered.until_next()
            pauses = [pause for pause in (left, RETRY if self._retry else None) if pause is not None]
            if await self._changed.wait(min(pauses, default=None)):
                first = self._clock.monotonic()
                while self._clock.monotonic() - first < MOST and await self._changed.wait(QUIET):
                    pass
            for gone in self.discovery.registered.expire():
                log.warning("model %s: %s has not been heard of in time: it is removed", gone.model, gone.name)
            await self._bring(refresh)

    async def _bring(self, refresh: Callable[[], Awaitable[None]]) -> None:
        self._retry = False
        try:
            await refresh()
        except ConfigError as error:
            self._retry = True
            if (count := self._often.admit()) is not None:
                why = f"{error.message}{left_out(count)}"
                log.error("what is found cannot be used, and what was there before stays: %s", why)
        except Exception:  # an error of our own must not be the end of all that is found
            self._retry = True
            log.exception("what is found could not be brought into the fleet; it is tried again in %g s", RETRY)

    # what is shown

    @property
    def registered(self) -> Registered:
        return self.discovery.registered

    def models(self) -> Sequence[str]:
        """Their names, by the configuration in force."""
        return self.discovery.following.models

    def sources(self) -> list[SourceView]:
        return [
            SourceView(
                *(one.model, one.label, one.problem or None, one.changed_at),
                *([endpoint.url for endpoint in one.endpoints], one.wrong),
            )
            for one in self.discovery.following.followers
        ]

    def in_force(self, model: str, url: str) -> EndpointSettings | None:
        """The endpoint of ``model`` at ``url``; None: there is none."""
        location = Location.of(url)
        endpoints = (endpoint for one in self.config.models if one.name == model for endpoint in one.endpoints)
        return next((endpoint for endpoint in endpoints if Location.of(endpoint.url) == location), None)


def _unusable(offers: Sequence[Offer]) -> Mapping[TlsSettings, str]:
    """The TLS settings among what is found whose files cannot be used, with the reason. Blocking."""
    found: dict[TlsSettings, EndpointSettings] = {}
    for offer in offers:
        for endpoint in offer.endpoints:
            if (tls := _key(endpoint.tls)) is not None:
                found.setdefault(tls, endpoint)
    unusable = {}
    for tls, endpoint in found.items():
        try:
            Address.of(endpoint, TlsContexts())
        except ConfigError as error:
            unusable[tls] = f"left out, with all that have the same tls: {error.message}"
    return unusable


def _key(tls: TlsSettings | None) -> TlsSettings | None:
    """The same for all that have the same files."""
    return None if tls is None else replace(tls, server_name=None)
