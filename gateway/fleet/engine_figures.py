"""What an engine's scrapes say, entered where it counts: ledgers, endpoints, metrics; whoever has scraped it."""

from __future__ import annotations

import logging
from math import inf

from gateway.fleet.context import FleetContext, FleetListener
from gateway.fleet.engine import FleetEngine
from gateway.fleet.scrape import Scrape, restarted

log = logging.getLogger("kvgate.fleet")


class EngineFigures:
    """``last``: the last scrape, and ``asked``: Clock.monotonic() when it began."""

    def __init__(self, engine: FleetEngine, context: FleetContext) -> None:
        self.last: Scrape | None = None
        self.asked = -inf
        self._engine = engine
        self._observer = context.observer
        self._listeners = context.listeners

    def note_process(self, scrape: Scrape) -> bool:
        """Before ``scrape`` is entered: whether another process answers than before, of which then nothing is known."""
        if new := self._is_new_process(scrape):
            log.info("engine %s restarted", self._engine.name)
            for core in self._engine.cores:
                core.cost.reset()
                core.cache_counters.restart()
            for endpoint in self._engine.endpoints:
                self._listeners.notify(FleetListener.engine_restarted, endpoint)
        if scrape.started is not None:
            self._engine.started = scrape.started
        return new

    def enter(self, scrape: Scrape, asked: float, ranks: int | None, *, heard: bool = False) -> None:
        """``ranks``: of the engine, as far as it is known. ``heard``: another worker of the host has scraped it, and
        counts what the engine has counted."""
        last, self.last, self.asked = self.last, scrape, asked
        # If an engine has just lost its connector, report its counters once more, now without values.
        has_kv_connector = scrape.has_kv_connector or (last is not None and last.has_kv_connector)
        # The labels of removed ranks stay in the text. Their values must not be added to the one rank that is left.
        alone = ranks == 1 and len(scrape.engines) > 1
        for core in self._engine.cores:
            if (metrics := scrape.rank(0 if alone else core.rank)) is None:
                continue
            core.apply_scrape(metrics, asked)
            own, external = core.cache_counters.update(metrics)
            for endpoint in core.endpoints:
                if not heard:
                    self._observer.cache_lookups(endpoint.name, "own", own.queried, own.hit)
                    if external.queried or external.hit:
                        self._observer.cache_lookups(endpoint.name, "external", external.queried, external.hit)
                if has_kv_connector:
                    self._observer.kv_transfers(endpoint.name, metrics.kv_expired, metrics.kv_fetching)
        self._engine.sleep = scrape.sleep
        if scrape.sleep and not (last is not None and last.sleep):  # at level 0 it keeps its KV
            for endpoint in self._engine.endpoints:
                self._listeners.notify(FleetListener.engine_asleep, endpoint)

    def _is_new_process(self, scrape: Scrape) -> bool:
        if self.last is not None:
            return restarted(self.last, scrape)
        # Of the process whose costs were kept, where they were: its successor has to warm up first.
        known = self._engine.started
        return known is not None and scrape.started is not None and scrape.started != known
