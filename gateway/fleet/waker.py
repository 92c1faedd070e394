"""Wakes engines that sleep: because an operator says so, or because requests wait for one (``wake: on-demand``).

Rules: one engine of a model is woken at a time, however many requests wait; the next one only if it does not come up.
Where a host has several workers, the one that asks the engines wakes them. An engine that has discarded its weights is
not woken: without them it would answer nonsense.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from gateway.core.tasks import TaskSet
from gateway.fleet.context import FleetContext
from gateway.fleet.engine import FleetEngine
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.probe import EngineProbe
from gateway.fleet.registry import EngineRegistry
from gateway.fleet.sleep import Sleep
from gateway.framework import Role
from gateway.framework.fleet import Model
from gateway.http1.pool import Pool

log = logging.getLogger("kvgate.fleet")

TIMEOUT = 120.0
"""Seconds in which an engine must have woken up: to bring back weights takes 0.1 to 6 s, more on a busy host."""

AGAIN = 5.0
"""Seconds after which another engine is woken if requests still wait: it may have failed, or cannot be woken."""

MOST_BYTES = 4096
"""Of the answer, which is empty."""


class CannotWake(Exception):
    """The message says why, for an operator."""


class Waker:
    """Of one fleet. ``pool``: None until the fleet has started."""

    def __init__(self, context: FleetContext, registry: EngineRegistry, tasks: TaskSet) -> None:
        self.pool: Pool | None = None
        self._context = context
        self._registry = registry
        self._tasks = tasks
        self._waking: dict[FleetEngine, asyncio.Task[str]] = {}
        self._wanted: set[str] = set()
        self._failures: Counter[str] = Counter()
        if context.reports is not None:
            context.reports.wake = self._asked

    async def wake(self, name: str) -> FleetEngine:
        """Wake the engine of this name, or of the endpoint of this name; harmless if it is awake. Returns it once it
        has woken up; requests go there from its next scrape on, which is soon.

        Raises KeyError if there is none, CannotWake.
        """
        endpoints = self._registry.endpoints
        engines = [one.engine for one in endpoints if name in (one.name, one.engine.name) and not one.engine.going]
        if not engines:
            raise KeyError(name)
        engine = engines[0]
        if engine.sleep is None:
            return engine
        if engine.sleep == Sleep.DISCARDED:
            raise CannotWake("it sleeps at level 2, without its weights: it must load them first")
        if problem := await asyncio.shield(self._start(engine)):
            raise CannotWake(problem)
        return engine

    def want(self, model: Model, waits: Callable[[], bool]) -> None:
        """Requests of ``model`` wait: wake one of its engines, and another one where that does not help. Called for
        each of them, and again while they wait. ``waits``: whether any still do."""
        if model.name not in self._wanted and self._sleeper(model) is not None:
            self._wanted.add(model.name)
            self._tasks.start(self._wake_for(model, waits), name=f"wake an engine of {model.name}")

    async def _wake_for(self, model: Model, waits: Callable[[], bool]) -> None:
        try:
            while waits() and (engine := self._sleeper(model)) is not None:
                self._failures[engine.url] += 1  # until it is up: the next time another one is tried first
                reports = self._context.reports
                if reports is None or reports.asks:
                    await asyncio.wait([self._start(engine)])
                else:
                    reports.tell_wake(engine.url)
                await asyncio.sleep(AGAIN)
        finally:
            self._wanted.discard(model.name)

    def _sleeper(self, model: Model) -> FleetEngine | None:
        """The engine to wake: which has failed least to come up."""
        sleepers = [
            endpoint.engine
            for endpoint in self._registry.by_model.get(model.name, ())
            if endpoint.engine.sleep in (Sleep.PAUSED, Sleep.OFFLOADED)
            and not endpoint.draining
            and endpoint.role is not Role.PREFILL
        ]
        for engine in self._registry.engines:
            if engine.sleep is None:
                self._failures.pop(engine.url, None)
        return min(sleepers, key=lambda engine: self._failures[engine.url], default=None)

    def _asked(self, url: str) -> None:
        """Another worker's requests wait for the engine at ``url``."""
        for engine in self._registry.engines:
            if engine.url == url and engine.sleep is not None:
                self._start(engine)

    def _start(self, engine: FleetEngine) -> asyncio.Task[str]:
        """Wake it, unless that is under way. The task's result is what ``_post`` returns."""
        task = self._waking.get(engine)
        if task is None:
            task = self._tasks.start(self._post(engine), name=f"wake {engine.name}")
            self._waking[engine] = task
            task.add_done_callback(lambda _: self._waking.pop(engine, None))
        return task

    async def _post(self, engine: FleetEngine) -> str:
        """Returns why it could not be woken; empty: it is awake."""
        if self.pool is None:
            return "the gateway ends"
        probe = EngineProbe(self.pool, engine.address, engine.api_key, TIMEOUT, engine.record_connect)
        log.info("engine %s sleeps: waking it", engine.name)
        try:
            await probe.post("/wake_up", b"", MOST_BYTES, TIMEOUT, ())
        except ProbeFailed as failure:
            log.warning("engine %s could not be woken: %s", engine.name, why := _why(failure))
            return why
        if (watch := self._registry.watches.get(engine)) is not None:
            watch.probe_soon()
        return ""


def _why(failure: ProbeFailed) -> str:
    if failure.reason in ("status-404", "status-405"):
        return "it has no route /wake_up: it needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"
    return str(failure)
