"""Finds out what an engine is: its data-parallel ranks, models, version, and the source of its KV events.

Rules: a failure here never takes an engine down that is up. The number of ranks changes only if the engine reports the
new number twice. A known value is kept until there is another answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import ConfigError
from gateway.fleet.context import FleetContext, FleetListener
from gateway.fleet.engine import FleetEndpoint, FleetEngine
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.kv_source import KvSource, find_source
from gateway.fleet.probe import EngineProbe
from gateway.fleet.ranks import rank_count
from gateway.fleet.report import Inspected
from gateway.fleet.scrape import Scrape, ScrapeReader
from gateway.framework.fleet import ServedModel

log = logging.getLogger("kvgate.fleet")

REFRESH = 30.0
"""Seconds after which models and event sources are asked for again: adapters come and go at run time."""

RETRY = 5.0
"""Seconds after which they are requested again if one of the requests failed."""

CONFIRM = 0.1
"""Seconds before the second report of a changed number of ranks is requested, so that the two reports are not both from
the moment of the change."""

NO_LIST = frozenset({"status-401", "status-403", "status-404", "status-405"})
"""Statuses of ``/v1/models`` with which an engine may still serve: it needs a key that only clients have, or has no
such route."""


class EngineInspector:
    """``reader``: of the engine's scrapes. ``set_ranks``: makes as many cores, or raises ConfigError; only called where
    the configuration leaves the number to the engine. ``changed``: called when it serves other models than before."""

    def __init__(
        self,
        engine: FleetEngine,
        context: FleetContext,
        reader: ScrapeReader,
        set_ranks: Callable[[int], None],
        changed: Callable[[], None],
    ) -> None:
        self.ranks: int | None = None
        self._engine = engine
        self._context = context
        self._reader = reader
        self._set_ranks = set_ranks
        self._changed = changed
        self._sources: Mapping[str, Any] | None = None
        self._refresh_at = 0.0
        self._soon = False
        self._due = False
        self._complete = True
        self._warned: set[str] = set()
        self._fresh = False
        self._told: Inspected | None = None

    def refresh_soon(self) -> None:
        """Inspect with the next scrape that is sent from now on: the endpoints have changed."""
        self._soon = True

    def restarted(self) -> None:
        """The engine is another process: ask it everything again."""
        self._refresh_at = 0.0

    # what workers tell each other

    def found(self) -> Inspected:
        """What is known by now."""
        served = list(self._engine.served.values())
        sources = None if self._sources is None else dict(self._sources)
        return Inspected(self.ranks, sources, served, self._engine.version)

    def news(self) -> Inspected | None:
        """What is known by now; None: as it was at the last call."""
        if not self._fresh:
            return None
        self._fresh = False
        told, self._told = self._told, self.found()
        return self._told if self._told != told else None

    def tell_all_again(self) -> None:
        """``news`` is all that is known: another worker told it before."""
        self._told, self._fresh = None, True

    def adopt(self, found: Inspected | None) -> None:
        """Take over what another worker has found; None: nothing new."""
        if found is not None:
            self._sources = found.sources
            if self._engine.configured_ranks is None and found.ranks is not None and found.ranks != self.ranks:
                self._be(found.ranks)
            self._serve({model.id: model for model in found.served})
            self._engine.version = found.version
        if found is not None or self._soon:
            self._soon = False
            self._update_sources()

    # asking

    async def check_ranks(self, probe: EngineProbe, scrape: Scrape, *, up: bool, labels_changed: bool) -> Scrape:
        """Before ``scrape`` is applied: make the engine's cores fit its number of ranks.

        Returns the scrape to apply: ``scrape``, or a later one. ``labels_changed``: it has another number of ranks than
        the scrape before it.
        """
        late = self._soon or self._context.clock.monotonic() >= self._refresh_at
        self._due = not scrape.asleep and (not up or late)
        self._soon = self._soon and not self._due
        self._complete = True
        if self._due or labels_changed:
            self._complete = await self._ask_sources(probe)
        if self._engine.configured_ranks is not None:
            count, configured = rank_count(scrape, self._sources or {}), len(self._engine.cores)
            if count != configured:
                self._warn("ranks", f"it has {count} data-parallel ranks, the configuration says {configured}")
        elif not scrape.asleep:
            before = self.ranks
            scrape = await self._count(probe, scrape)
            self._due = self._due or self.ranks != before
        return scrape

    async def check_served(self, probe: EngineProbe, *, up: bool) -> None:
        """After the scrape was applied: ask for models, version and event sources, if that is due.

        Raises ProbeFailed if an engine that is down does not list its models.
        """
        if not self._due:
            return
        self._fresh = True
        complete = self._complete
        try:
            self._serve(await probe.models())
        except ProbeFailed as failure:
            if failure.reason in NO_LIST:
                self._warn("models", f"it does not list its models ({failure.reason}); does it need an api_key?")
            elif not up:
                raise
            else:
                complete = False
        try:
            self._engine.version = await probe.version()
        except ProbeFailed as failure:
            log.info("engine %s: version: %s", self._engine.name, failure.reason)
            complete = False
        self._update_sources()
        self._refresh_at = self._context.clock.monotonic() + (REFRESH if complete else RETRY)

    def _serve(self, served: Mapping[str, ServedModel]) -> None:
        before, self._engine.served = self._engine.served, served
        if served != before:
            self._changed()

    async def _count(self, probe: EngineProbe, scrape: Scrape) -> Scrape:
        """Returns the scrape that holds now: of two, the second."""
        number = rank_count(scrape, self._sources or {})
        if number == self.ranks:
            return scrape
        if self.ranks is not None:
            await asyncio.sleep(min(CONFIRM, self._context.settings.scrape.interval))
            try:
                scrape = await probe.scrape(self._reader, self._context.clock)
            except ProbeFailed:
                return scrape
            answered = await self._ask_sources(probe) or not self._sources
            if not answered or rank_count(scrape, self._sources or {}) != number:
                return scrape
        self._be(number)
        return scrape

    def _be(self, number: int) -> None:
        """The engine has this number of ranks."""
        try:
            self._set_ranks(number)
        except ConfigError as error:
            self._warn("names", f"it has {number} data-parallel ranks, and its endpoints stay as they were: {error}")
        if number != (self.ranks or 1):
            log.info("engine %s: data-parallel ranks: %d", self._engine.name, number)
        self.ranks, self._fresh = number, True

    async def _ask_sources(self, probe: EngineProbe) -> bool:
        """False if there was no answer."""
        wanted = [binding.settings.kv_events for binding in self._engine.bindings]
        by_config = self._engine.configured_ranks is not None
        if by_config and not any(events.enabled and events.endpoint is None for events in wanted):
            return True
        try:
            self._sources, self._fresh = await probe.kv_sources() or {}, True
        except ProbeFailed as failure:
            log.info("engine %s: event sources: %s", self._engine.name, failure.reason)
            return False
        return True

    def _update_sources(self) -> None:
        host, sources = self._engine.host, self._sources
        for endpoint in self._engine.endpoints:
            events, rank = endpoint.binding.settings.kv_events, endpoint.rank
            if sources is None and events.enabled and events.endpoint is None:
                continue  # it is not known yet
            topic = endpoint.binding.settings.kv_topic(endpoint.model.name)
            self._set_source(endpoint, find_source(events, rank, host, topic, sources or {}))

    def _set_source(self, endpoint: FleetEndpoint, source: KvSource | None) -> None:
        if endpoint.source_known and endpoint.source == source:
            return
        endpoint.source, endpoint.source_known = source, True
        self._context.listeners.notify(FleetListener.kv_source, endpoint, source)

    def _warn(self, what: str, message: str) -> None:
        """Once in an engine's life for each ``what``."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("engine %s: %s", self._engine.name, message)
