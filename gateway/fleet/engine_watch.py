"""One engine, watched: a loop that scrapes it, judges its health and learns what it serves.

Rules: everything that changes an ``Engine`` or the metrics and warmth of its endpoints is here. One question at a time
is under way to an engine. Before an engine is called up, its ranks and models are known, so that the first request goes
to the right place under the right name. The loop survives whatever an engine answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from gateway.errors import ConfigError
from gateway.fleet.core import Core, Place
from gateway.fleet.health import Health
from gateway.fleet.kv_source import KvSource, configured, connecting, reported
from gateway.fleet.listener import Listeners
from gateway.fleet.outliers import Answers
from gateway.fleet.probe import EngineProbe, ProbeFailed
from gateway.fleet.ranks import rank_count
from gateway.fleet.scrape import Scrape, ScrapeReader, restarted
from gateway.fleet.settings import FleetSettings
from gateway.framework import Clock, Engine, Observer
from gateway.framework.pauses import Pauses

log = logging.getLogger("kvgate.fleet")

LATENCY_WEIGHT = 0.2
"""Of a new round trip in the running mean: the last five or so count, so that one late wake-up of our loop does not."""

RELEARN = 30.0
"""Seconds after which models and event sources are asked again while all is well: adapters come and go at run time."""

LEARN_AGAIN = 5.0
"""Seconds after which they are asked again if one of them was not to be had."""

SOONEST = 0.1
"""Seconds between two scrapes that broken answers ask for, so that a storm of them does not become one of scrapes; and
between the two answers that change an engine's number of ranks, so that not both fall into the moment of a change."""

OURS = 0.5
"""Of the time that a scrape may take, the part which our own loop may have lost before its lateness is ours alone."""

NO_LIST = frozenset({"status-401", "status-403", "status-404", "status-405"})
"""Answers to ``/v1/models`` with which an engine may still serve: a key that only clients have, or no such route."""


class EngineWatch:
    """``run`` is the loop; ``refused``, ``broke``, ``answered`` and ``finished`` are what requests tell it.

    ``judge``: called when its health has changed; says by ``use`` of each engine whether it is spared. ``ranks_are``:
    told how many data-parallel ranks the engine has, when that is not how many ``cores`` stand for; it makes as many,
    or raises ConfigError. None: the configuration says how many.
    """

    def __init__(
        self,
        engine: Engine,
        settings: FleetSettings,
        *,
        clock: Clock,
        observer: Observer,
        random: Random,
        listeners: Listeners,
        judge: Callable[[], None],
        pauses: Pauses,
        ranks_are: Callable[[int], None] | None,
    ) -> None:
        self.engine = engine
        self.cores: list[Core] = []
        self.probed = asyncio.Event()
        self._host = engine.host
        self._interval = settings.scrape.interval
        self._clock = clock
        self._observer = observer
        self._random = random
        self._listeners = listeners
        self._judge = judge
        self._pauses = pauses
        self._timeout = settings.scrape.timeout
        self._ranks_are = ranks_are
        self._ranks: int | None = None
        self._sources: Mapping[str, Any] | None = None
        self.health = Health(settings.health, clock, random)
        self._reader = ScrapeReader()
        self._last: Scrape | None = None
        self._learn_at = 0.0
        self._relearn = False
        self._wake = asyncio.Event()
        self._suspect = False
        self._answers = Answers()
        self._heard_at = clock.monotonic()
        self._warned: set[str] = set()

    @property
    def places(self) -> list[Place]:
        """The engine's endpoints, of all models."""
        return [place for core in self.cores for place in core.places]

    # what requests tell

    def refused(self) -> None:
        """A request's connection was refused: out at once, and tried again after a pause."""
        if self.health.refused():
            self._state_changed()
            self._wake.set()

    def broke(self, why: str, waited: float | None) -> None:
        """An answer broke off: look at once, without waiting for the next scrape. ``why``: a short word. ``waited``:
        seconds after which it was not waited for any longer; None: it ended by itself.

        Whoever answers others meanwhile has a long queue, and is not broken.
        """
        now = self._clock.monotonic()
        mute = waited is not None and self._heard_at < now - waited
        if mute or waited is None:
            self._answers.ended(now, broken=True)
        under_way = 0 if mute else sum(core.ledger.requests for core in self.cores)
        if self._answers.outlier(under_way) and self.health.broken():
            log.warning("engine %s: too many of its answers broke off, the last one: %s", self.engine.name, why)
            self._answers.clear()
            self._state_changed()
            self._wake.set()
        elif self.engine.up:
            self._suspect = True
            self._wake.set()

    def answered(self, connect_seconds: float | None) -> None:
        """An answer's head came. ``connect_seconds``: what its connection took to make; None: it was there already."""
        self._heard_at = self._clock.monotonic()
        if connect_seconds is not None:
            self.connected(connect_seconds)

    def finished(self) -> None:
        """An answer is complete."""
        self._heard_at = now = self._clock.monotonic()
        self._answers.ended(now, broken=False)

    def connected(self, seconds: float) -> None:
        """A connection was made in ``seconds``."""
        mean = self.engine.latency
        self.engine.latency = seconds if mean is None else mean + LATENCY_WEIGHT * (seconds - mean)

    def relearn(self) -> None:
        """Its endpoints changed: ask for models and event sources with the next scrape, also if that is on its way."""
        self._relearn = True

    def use(self, *, spared: bool) -> None:
        """Whether it is used even if it is not healthy."""
        if spared == self.engine.spared:
            return
        self.engine.spared = spared
        self.engine.up = self.health.up or spared
        self._observer.engine_spared(self.engine.name, spared)
        if spared:
            log.warning(
                "engine %s is down (%s), and used all the same: more than half of a model's endpoints would be out",
                self.engine.name,
                self.engine.down_reason,
            )
        elif not self.health.up:
            log.warning("engine %s is down (%s), and not used any more", self.engine.name, self.engine.down_reason)

    def report(self) -> None:
        """Tell the observer its state."""
        self._observer.engine_state(self.engine.name, self.health.up, self.engine.down_reason)

    # the loop

    async def run(self, probe: EngineProbe) -> None:
        """Watch until cancelled. ``probed`` is set after the first look."""
        await self._look(probe)
        self.probed.set()
        # Engines that were first asked together would be asked together for ever, and stall the loop by their sum.
        share, elapsed = self._random.random(), 0.0
        while True:
            await self._rest(share, elapsed)
            asked = self._clock.monotonic()
            await self._look(probe)
            share, elapsed = 1.0, self._clock.monotonic() - asked

    async def _rest(self, share: float, elapsed: float) -> None:
        """Until the next look is due, or a request asks for one.

        ``share``: of the pause. ``elapsed``: what the last look took, part of the interval of an engine that is up.
        """
        while True:
            pause = self.health.pause(self._interval) * share - (elapsed if self.health.up else 0.0)
            try:
                async with asyncio.timeout(max(0.0, pause)):
                    await self._wake.wait()
            except TimeoutError:
                return
            self._wake.clear()
            if self._suspect:
                await asyncio.sleep(min(SOONEST, self._interval))
                return

    async def _look(self, probe: EngineProbe) -> None:
        asked, lost = self._clock.monotonic(), self._pauses.lost()
        try:
            await self._ask(probe, asked)
        except ProbeFailed as failure:
            lost = self._pauses.lost() - lost
            if failure.reason == "timeout" and lost > OURS * self._timeout:
                log.info("engine %s: not scraped in time, of which we lost %.1f s ourselves", self.engine.name, lost)
                self._suspect = True
                self._wake.set()
            else:
                self._failed(failure.reason, failure.detail)
        except Exception:
            log.exception("engine %s: the watch failed", self.engine.name)
            self._failed("internal")
        self._warm()

    async def _ask(self, probe: EngineProbe, asked: float) -> None:
        suspect, self._suspect = self._suspect, False
        if suspect or not self.health.up:
            await probe.healthy()
        scrape = await self._scrape(probe)
        if self._last is not None and restarted(self._last, scrape):
            self._restarted()
        late = self._relearn or self._clock.monotonic() >= self._learn_at
        due = not scrape.asleep and (not self.health.up or late)
        self._relearn = self._relearn and not due
        complete = True
        if due or (self._last is not None and len(scrape.engines) != len(self._last.engines)):
            complete = await self._ask_sources(probe)
        if self._ranks_are is not None and not scrape.asleep:
            before = self._ranks
            scrape = await self._count(probe, scrape, self._ranks_are)
            due = due or self._ranks != before
        fell_asleep = scrape.asleep and not (self._last is not None and self._last.asleep)
        self._take(scrape, asked)
        if fell_asleep:
            for place in self.places:
                self._listeners.engine_asleep(place)
        if due:
            await self._learn(probe, complete)
        self._observer.scraped(self.engine.name, True, self._clock.monotonic())
        if self.health.resting("asleep") if scrape.asleep else self.health.succeeded(asked):
            self._state_changed()

    async def _scrape(self, probe: EngineProbe) -> Scrape:
        text = await probe.metrics()
        scrape = self._reader.read(text, self._clock.monotonic())
        if scrape is None:
            raise ProbeFailed("garbage")
        return scrape

    async def _ask_sources(self, probe: EngineProbe) -> bool:
        """False if there was no answer: then what it said before still stands."""
        wanted = [place.settings.kv_events for place in self.places]
        if self._ranks_are is None and not any(events.enabled and events.endpoint is None for events in wanted):
            return True
        try:
            self._sources = await probe.kv_sources()
        except ProbeFailed as failure:
            log.info("engine %s: event sources: %s", self.engine.name, failure.reason)
            return False
        return True

    async def _count(self, probe: EngineProbe, scrape: Scrape, ranks_are: Callable[[int], None]) -> Scrape:
        """Make the cores fit the number of ranks; a known number changes only if the engine says so twice.

        Returns the scrape that holds now: of two, the second.
        """
        number = rank_count(scrape, self._sources or {})
        if number == self._ranks:
            return scrape
        if self._ranks is not None:
            await asyncio.sleep(min(SOONEST, self._interval))
            try:
                scrape = await self._scrape(probe)
            except ProbeFailed:
                return scrape
            told = await self._ask_sources(probe) or not self._sources
            if not told or rank_count(scrape, self._sources or {}) != number:
                return scrape
        try:
            ranks_are(number)
        except ConfigError as error:
            self._warn("names", f"it has {number} data-parallel ranks, and its endpoints stay as they were: {error}")
        if number != (self._ranks or 1):
            log.info("engine %s: data-parallel ranks: %d", self.engine.name, number)
        self._ranks = number
        self._warm()
        return scrape

    def _take(self, scrape: Scrape, asked: float) -> None:
        # One that has lost its connector says so once more, by what is missing.
        transfers = scrape.transfers or (self._last is not None and self._last.transfers)
        self._last = scrape
        if scrape.started is not None:
            self.engine.started = scrape.started
        # Labels of ranks that were scaled away stay behind, and must not be added to the one that is left.
        alone = self._ranks == 1 and len(scrape.engines) > 1
        for core in self.cores:
            if (metrics := scrape.rank(0 if alone else core.rank)) is None:
                continue
            core.scraped(metrics, asked)
            own, external = core.lookups.grown(metrics)
            for place in core.places:
                self._observer.cache_lookups(place.name, "own", own.queried, own.hit)
                if external.queried or external.hit:
                    self._observer.cache_lookups(place.name, "external", external.queried, external.hit)
                if transfers:
                    self._observer.kv_transfers(place.name, metrics.kv_expired, metrics.kv_fetching)
        told, configured_ranks = rank_count(scrape, self._sources or {}), len({core.rank for core in self.cores})
        if self._ranks_are is None and told != configured_ranks:
            self._warn("ranks", f"it has {told} data-parallel ranks, the configuration says {configured_ranks}")

    def _restarted(self) -> None:
        log.info("engine %s restarted", self.engine.name)
        self._learn_at = 0.0
        for core in self.cores:
            core.cost.renewed()
            core.lookups.began_anew()
        for place in self.places:
            self._listeners.engine_restarted(place)

    async def _learn(self, probe: EngineProbe, complete: bool) -> None:
        """What it serves, its version, and where its events come from. One that is up already does not fail by it.

        ``complete``: whether all that was asked before had an answer.
        """
        try:
            self.engine.served = await probe.models()
        except ProbeFailed as failure:
            if failure.reason in NO_LIST:
                self._warn("models", f"it does not tell its models ({failure.reason}); does it need an api_key?")
            elif not self.health.up:
                raise
            else:
                complete = False
        try:
            self.engine.version = await probe.version()
        except ProbeFailed as failure:
            log.info("engine %s: version: %s", self.engine.name, failure.reason)
            complete = False
        self._tell_sources()
        self._learn_at = self._clock.monotonic() + (RELEARN if complete else LEARN_AGAIN)

    def _tell_sources(self) -> None:
        for core in self.cores:
            for place in core.places:
                events = place.settings.kv_events
                source = configured(events, core.rank, self._host, self._sources or {})
                if source is None and events.enabled and events.endpoint is None:
                    if self._sources is None:
                        continue
                    if events.connects:
                        topic = place.settings.kv_topic(place.model.name)
                        source = connecting(events, core.rank, self._host, topic, self._sources)
                    else:
                        source = reported(self._sources, core.rank, self._host, events.topic)
                self._source_is(place, source)

    def _source_is(self, place: Place, source: KvSource | None) -> None:
        if place.source_known and place.source == source:
            return
        place.source, place.source_known = source, True
        self._listeners.kv_source(place, source)

    def _failed(self, reason: str, detail: str = "") -> None:
        self._observer.scraped(self.engine.name, False, self._clock.monotonic())
        if self.health.failed(reason):
            self._state_changed(detail)

    def _state_changed(self, detail: str = "") -> None:
        if self.health.up and self.engine.spared:
            self.health.warm()
        self.engine.up = self.health.up or self.engine.spared
        self.engine.down_reason = self.health.reason
        self._warm()
        self.report()
        if self.health.up:
            log.info("engine %s is up (vLLM %s)", self.engine.name, self.engine.version or "of unknown version")
        else:
            why = f"{self.engine.down_reason} ({detail})" if detail else self.engine.down_reason
            log.warning("engine %s is down: %s", self.engine.name, why)
        self._judge()

    def _warm(self) -> None:
        warmth = self.health.warmth()
        for place in self.places:
            place.warmth = warmth

    def _warn(self, what: str, message: str) -> None:
        """Once in an engine's life for each thing."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("engine %s: %s", self.engine.name, message)
