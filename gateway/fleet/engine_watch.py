"""The watch over one engine: a loop that scrapes it, judges its health, and has it inspected.

Rules: whatever changes an ``Engine``, or the metrics and warmth of its endpoints, is here or in ``EngineInspector``.
One question at a time is on its way to an engine. An engine is up only after its ranks and models are known, so that
the first request goes to a rank that exists under a name that is served. The loop survives whatever an engine answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.core.signal import Signal
from gateway.core.tasks import TaskSet
from gateway.fleet.context import FleetContext, FleetListener
from gateway.fleet.engine import FleetEngine
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.health import Health
from gateway.fleet.inspector import EngineInspector
from gateway.fleet.probe import EngineProbe
from gateway.fleet.scrape import Scrape, ScrapeReader, restarted
from gateway.http1.pool import Pool

log = logging.getLogger("kvgate.fleet")

RESCRAPE = 0.1
"""Seconds before a scrape that a broken answer triggers: many broken answers must not cause many scrapes."""

TOGETHER = 8
"""Engines that are scraped in the same moment, some 2 ms of work: to wake up for each, with the core's caches cold,
costs an idle gateway more than the scrapes. A hundred engines at once would hold up all that it relays."""

GOLDEN = 0.618
"""Part of the interval from one group's moment to the next group's: the golden ratio spreads any number of them."""

EARLY = 0.02
"""Part of the interval by which a timer may fire early: there is no second scrape in the same moment."""

OWN_PAUSE = 0.5
"""Part of the scrape timeout. If the gateway's own loop was held up for longer, it was late, and not the engine."""


class EngineWatch:
    """``run`` is the loop. With the ``report_`` methods, requests report how the engine answered them.

    ``health_changed``: called whenever its health has changed. ``set_ranks``: as for ``EngineInspector``. ``probed``:
    set once the engine was probed for the first time.
    """

    def __init__(
        self,
        engine: FleetEngine,
        context: FleetContext,
        *,
        health_changed: Callable[[], None],
        set_ranks: Callable[[int], None],
    ) -> None:
        self.engine = engine
        self.health = Health(context.settings.health, context.clock, context.random)
        self.probed = asyncio.Event()
        self._context = context
        self._clock = context.clock
        self._observer = context.observer
        self._interval = context.settings.scrape.interval
        self._offset = next(context.numbers) // TOGETHER * GOLDEN % 1.0 * self._interval
        self._health_changed = health_changed
        self._reader = ScrapeReader()
        self._inspector = EngineInspector(engine, context, self._reader, set_ranks)
        self._last: Scrape | None = None
        self._wake = Signal()
        self._suspect = False
        engine.heard_at = context.clock.monotonic()
        self._probe: EngineProbe | None = None
        self._task: asyncio.Task[None] | None = None

    # life

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self, tasks: TaskSet, pool: Pool) -> None:
        """Run the loop in ``tasks``, unless it runs already."""
        if self._task is None:
            timeout = self._context.settings.scrape.timeout
            engine = self.engine
            self._probe = EngineProbe(pool, engine.address, engine.api_key, timeout, engine.record_connect)
            self._task = tasks.start(self.run(self._probe), name=f"watch {engine.name}")

    def stop(self) -> None:
        """The engine is dropped."""
        if self._task is not None:
            self._task.cancel()
        self._task = self._probe = None

    def update_access(self) -> None:
        """The engine has another address or key, from the next question on."""
        if self._probe is not None:
            self._probe.retarget(self.engine.address, self.engine.api_key)

    def refresh_soon(self) -> None:
        """The engine's endpoints have changed: inspect it with the next scrape."""
        self._inspector.refresh_soon()

    # reports of requests

    def report_refused(self) -> None:
        """A connection was refused: take it out at once, and try it again after a pause."""
        if self.health.record_refused():
            self._update_state()
            self._wake.set()

    def report_broken(self, why: str, waited: float | None) -> None:
        """An answer broke off: probe at once. ``why``, ``waited``: as for ``Fleet.report_broken``.

        If others were answered while one waited, the queue is long and the engine is not broken.
        """
        now = self._clock.monotonic()
        mute = waited is not None and self.engine.heard_at < now - waited
        if mute or waited is None:
            self.engine.answers.ended.append((now, True))
        in_flight = 0 if mute else sum(core.ledger.own_requests for core in self.engine.cores)
        if self.engine.answers.is_outlier(in_flight) and self.health.record_broken():
            log.warning("engine %s: too many of its answers broke off, the last one: %s", self.engine.name, why)
            self.engine.answers.ended.clear()
            self._update_state()
            self._wake.set()
        elif self.engine.up:
            self._suspect = True
            self._wake.set()

    # state

    def set_spared(self, spared: bool) -> None:
        """Use the engine although it is not healthy, or stop that."""
        if spared == self.engine.spared:
            return
        self.engine.spared = spared
        self.engine.up = self.health.up or spared
        self._observer.engine_spared(self.engine.name, spared)
        if spared:
            log.warning(
                "engine %s is down (%s), but still used: more than half of a model's endpoints would be ejected",
                self.engine.name,
                self.engine.down_reason,
            )
        elif not self.health.up:
            log.warning("engine %s is down (%s), and not used any more", self.engine.name, self.engine.down_reason)

    def publish_state(self) -> None:
        self._observer.engine_state(self.engine.name, self.health.up, self.engine.down_reason)

    def _update_state(self, detail: str = "") -> None:
        """The health has changed. ``detail``: of a failure, for the log."""
        if self.health.up and self.engine.spared:
            self.health.skip_slow_start()
        self.engine.up = self.health.up or self.engine.spared
        self.engine.down_reason = self.health.reason
        self._update_warmth()
        self.publish_state()
        if self.health.up:
            log.info("engine %s is up (vLLM %s)", self.engine.name, self.engine.version or "of unknown version")
        else:
            why = f"{self.engine.down_reason} ({detail})" if detail else self.engine.down_reason
            log.warning("engine %s is down: %s", self.engine.name, why)
        self._health_changed()

    def _update_warmth(self) -> None:
        warmth = self.health.warmth()
        for endpoint in self.engine.endpoints:
            endpoint.warmth = warmth

    def _record_failure(self, reason: str, detail: str = "") -> None:
        self._observer.scraped(self.engine.name, False, self._clock.monotonic())
        if self.health.record_failure(reason):
            self._update_state(detail)

    # the loop

    async def run(self, probe: EngineProbe) -> None:
        """Watch until cancelled."""
        await self._probe_once(probe)
        self.probed.set()
        elapsed, least = 0.0, 0.5
        while True:
            await self._pause(elapsed, least)
            asked = self._clock.monotonic()
            await self._probe_once(probe)
            elapsed, least = self._clock.monotonic() - asked, EARLY

    async def _pause(self, elapsed: float, least: float) -> None:
        """Wait until the next probe is due, or a request asks for one.

        ``elapsed``: what the last probe took. ``least``: part of the interval that lies between two, unless an engine
        is slow.
        """
        while True:
            pause = self.health.pause(self._interval)
            if self.health.up:
                pause = self._until_turn(least * self._interval) if elapsed < pause else 0.0
            if not await self._wake.wait(pause):
                return
            if self._suspect:
                await asyncio.sleep(min(RESCRAPE, self._interval))
                return

    def _until_turn(self, least: float) -> float:
        """Seconds until its group is next scraped, which is once an interval; the interval if that is in less than
        ``least``."""
        left = self._interval - (asyncio.get_running_loop().time() - self._offset) % self._interval
        return left if left > least else self._interval

    async def _probe_once(self, probe: EngineProbe) -> None:
        pauses = self._context.pauses
        with pauses.watching():
            asked, lost = self._clock.monotonic(), pauses.lost()
            try:
                await self._update(probe, asked)
            except ProbeFailed as failure:
                lost = pauses.lost() - lost
                if failure.reason == "timeout" and lost > OWN_PAUSE * self._context.settings.scrape.timeout:
                    log.info(
                        "engine %s: not scraped in time, of which we lost %.1f s ourselves", self.engine.name, lost
                    )
                    self._suspect = True
                    self._wake.set()
                else:
                    self._record_failure(failure.reason, failure.detail)
            except Exception:
                log.exception("engine %s: the watch failed", self.engine.name)
                self._record_failure("internal")
        self._update_warmth()

    async def _update(self, probe: EngineProbe, asked: float) -> None:
        """Raises ProbeFailed. ``asked``: when this began."""
        suspect, self._suspect = self._suspect, False
        if suspect or not self.health.up:
            await probe.check_health()
        scrape, last = await probe.scrape(self._reader, self._clock), self._last
        if self._has_restarted(last, scrape):
            self._handle_restart()
        if scrape.started is not None:
            self.engine.started = scrape.started
        labels_changed = last is not None and len(scrape.engines) != len(last.engines)
        scrape = await self._inspector.check_ranks(probe, scrape, up=self.health.up, labels_changed=labels_changed)
        self._update_warmth()
        self._apply_scrape(scrape, asked)
        if scrape.asleep and not (last is not None and last.asleep):
            for endpoint in self.engine.endpoints:
                self._context.listeners.notify(FleetListener.engine_asleep, endpoint)
        await self._inspector.check_served(probe, up=self.health.up)
        self._observer.scraped(self.engine.name, True, self._clock.monotonic())
        if self.health.record_unavailable("asleep") if scrape.asleep else self.health.record_success(asked):
            self._update_state()

    def _apply_scrape(self, scrape: Scrape, asked: float) -> None:
        # If an engine has just lost its connector, report its counters once more, now without values.
        has_kv_connector = scrape.has_kv_connector or (self._last is not None and self._last.has_kv_connector)
        self._last = scrape
        # The labels of removed ranks stay in the text. Their values must not be added to the one rank that is left.
        alone = self._inspector.ranks == 1 and len(scrape.engines) > 1
        for core in self.engine.cores:
            if (metrics := scrape.rank(0 if alone else core.rank)) is None:
                continue
            core.apply_scrape(metrics, asked)
            own, external = core.cache_counters.update(metrics)
            for endpoint in core.endpoints:
                self._observer.cache_lookups(endpoint.name, "own", own.queried, own.hit)
                if external.queried or external.hit:
                    self._observer.cache_lookups(endpoint.name, "external", external.queried, external.hit)
                if has_kv_connector:
                    self._observer.kv_transfers(endpoint.name, metrics.kv_expired, metrics.kv_fetching)

    def _has_restarted(self, last: Scrape | None, scrape: Scrape) -> bool:
        if last is not None:
            return restarted(last, scrape)
        # Of the process whose costs were kept, where they were: its successor has to warm up first.
        known = self.engine.started
        return known is not None and scrape.started is not None and scrape.started != known

    def _handle_restart(self) -> None:
        log.info("engine %s restarted", self.engine.name)
        self._inspector.restarted()
        for core in self.engine.cores:
            core.cost.reset()
            core.cache_counters.restart()
        for endpoint in self.engine.endpoints:
            self._context.listeners.notify(FleetListener.engine_restarted, endpoint)
