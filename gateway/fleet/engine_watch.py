"""The watch over one engine: a loop that scrapes it, judges its health, and has it inspected.

Rules: whatever changes an ``Engine``, or the metrics and warmth of its endpoints, is here, in ``EngineInspector`` or in
``EngineFigures``. Where a host has several workers, one asks an engine for all, and the others adopt its reports. One
question at a time is on its way to an engine. An engine is up only after its ranks and models are known, so that
the first request goes to a rank that exists under a name that is served. The loop survives whatever an engine answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.core.signal import Signal
from gateway.core.tasks import TaskSet
from gateway.fleet.context import FleetContext
from gateway.fleet.engine import FleetEngine
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.engine_figures import EngineFigures
from gateway.fleet.health import Health
from gateway.fleet.inspector import EngineInspector
from gateway.fleet.probe import EngineProbe
from gateway.fleet.report import EngineReport, Inspected
from gateway.fleet.scrape import Scrape, ScrapeReader
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
        self._reports = context.reports
        self._clock = context.clock
        self._observer = context.observer
        self._interval = context.settings.scrape.interval
        self._offset = next(context.numbers) // TOGETHER * GOLDEN % 1.0 * self._interval
        self._health_changed = health_changed
        self._reader = ScrapeReader()
        self._inspector = EngineInspector(engine, context, self._reader, set_ranks, health_changed)
        self._figures = EngineFigures(engine, context)
        self._told: Scrape | None = None
        self._alone = False
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
            if self._reports is not None:
                self._reports.add(self)

    def stop(self) -> None:
        """The engine is dropped."""
        if self._task is not None:
            self._task.cancel()
        if self._reports is not None:
            self._reports.remove(self)
        self._task = self._probe = None

    def update_access(self) -> None:
        """The engine has another address or key, from the next question on."""
        if self._probe is not None:
            self._probe.retarget(self.engine.address, self.engine.api_key)

    def refresh_soon(self) -> None:
        """The engine's endpoints have changed: inspect it with the next scrape."""
        self._inspector.refresh_soon()

    def probe_soon(self) -> None:
        """It may have come up, or gone: do not wait for the next scrape."""
        self._suspect = True
        self._wake.set()

    # reports of requests

    def report_refused(self) -> None:
        """A connection was refused: take it out at once, and try it again after a pause."""
        if self.health.record_refused():
            self._update_state()
            self._tell_failure("refused")

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
            self._tell_failure("outlier")
        elif self.engine.up:
            self._suspect = True
            self._tell_failure("broken")

    def _tell_failure(self, what: str) -> None:
        """It is probed, here or by the lead, and all workers hear what it is now."""
        self._wake.set()
        if self._asks:
            self._tell()
        if self._reports is not None:
            self._reports.tell_failure(self.url, what)

    # the other workers of the host

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def knows(self) -> bool:
        """Whether anything is known of it, by a probe or from another worker."""
        return self.probed.is_set()

    @property
    def _asks(self) -> bool:
        return self._reports is None or self._reports.asks or self._alone

    def whole(self) -> EngineReport:
        """All that is known."""
        return self._report(self._figures.last, self._inspector.found())

    def adopt(self, report: EngineReport) -> None:
        """Take over what another worker has found, in the order in which ``_update`` does."""
        self._alone = False
        scrape = report.scrape if report.asked > self._figures.asked else None
        if scrape is not None:
            self._figures.note_process(scrape)
        self._inspector.adopt(report.inspected)
        if scrape is not None:
            self._figures.enter(scrape, report.asked, self._inspector.ranks, heard=True)
            self._observer.scrape_heard(self.engine.name, report.asked)
        if self.engine.latency is None:
            self.engine.latency = report.latency
        if self.health.adopt(report.health, report.asked):
            self._update_state()
        self._update_warmth()
        self.probed.set()

    def set_alone(self) -> None:
        """The lead does not have this engine: ask it here, until it is reported."""
        self._alone = True
        self._wake.set()

    def hear_failure(self, what: str) -> None:
        """A request of another worker has noticed this: see ``report.EngineFailed``."""
        if what == "broken":
            self._suspect = self._suspect or self.engine.up
        elif self.health.record_refused() if what == "refused" else self.health.record_broken():
            self.engine.answers.ended.clear()
            self._update_state()
        self._wake.set()
        self._tell()

    def lead_changed(self) -> None:
        """Begin to ask, or stop."""
        self._inspector.tell_all_again()
        self._wake.set()

    def _tell(self) -> None:
        # Not what it does not know yet: the others know more, and would take the engine for down until it is probed.
        if self._reports is not None and self._reports.asks and self.knows:
            told, self._told = self._told, self._figures.last
            self._reports.tell(self._report(None if told is self._told else self._told, self._inspector.news()))

    def _report(self, scrape: Scrape | None, inspected: Inspected | None) -> EngineReport:
        asked = self._figures.asked
        return EngineReport(self.url, self.health.state(), asked, self.engine.latency, scrape, inspected)

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
        quiet = not self._asks  # the worker that asks it says so
        if self.health.up:
            level = logging.DEBUG if quiet else logging.INFO
            log.log(level, "engine %s is up (vLLM %s)", self.engine.name, self.engine.version or "of unknown version")
        else:
            why = f"{self.engine.down_reason} ({detail})" if detail else self.engine.down_reason
            log.log(logging.DEBUG if quiet else logging.WARNING, "engine %s is down: %s", self.engine.name, why)
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
        elapsed, least = 0.0, 0.5
        if self._reports is None:
            await self._probe_once(probe)
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
            if not self._asks:
                self._suspect = False  # the lead has been told
                await self._wake.wait()
                continue
            if not self.knows:
                return
            pause = self.health.pause(self._interval)
            if self.health.up:
                pause = self._until_turn(least * self._interval) if elapsed < pause else 0.0
            if not await self._wake.wait(pause) and self._asks:
                return
            if self._suspect and self._asks:
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
        self.probed.set()
        self._tell()

    async def _update(self, probe: EngineProbe, asked: float) -> None:
        """Raises ProbeFailed. ``asked``: when this began."""
        suspect, self._suspect = self._suspect, False
        if suspect or not self.health.up:
            await probe.check_health()
        scrape, last = await probe.scrape(self._reader, self._clock), self._figures.last
        if self._figures.note_process(scrape):
            self._inspector.restarted()
        labels_changed = last is not None and len(scrape.engines) != len(last.engines)
        scrape = await self._inspector.check_ranks(probe, scrape, up=self.health.up, labels_changed=labels_changed)
        self._update_warmth()
        self._figures.enter(scrape, asked, self._inspector.ranks)
        await self._inspector.check_served(probe, up=self.health.up)
        self._observer.scraped(self.engine.name, True, self._clock.monotonic())
        if self.health.record_unavailable("asleep") if scrape.asleep else self.health.record_success(asked):
            self._update_state()
