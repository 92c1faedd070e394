"""Brings the priorities of InferenceObjectives to the tenants' room, from one configuration to the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from gateway.config.settings import Config
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.discovery.kubernetes_settings import KubernetesSettings
from gateway.framework import Clock
from gateway.tenants.sources import Sources

log = logging.getLogger("kvgate.discovery")


class FoundObjectives:
    def __init__(self, sources: Sources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._tasks = TaskSet()
        self._running: dict[KubernetesSettings, asyncio.Task[None]] = {}
        self._found: dict[KubernetesSettings, Mapping[str, int]] = {}
        self._often = LogLimit(clock)

    def follow(self, config: Config) -> None:
        """Follow those of the pools of ``config`` that ask for it, and no others."""
        wanted = [one.kubernetes for model in config.models for one in model.discover if one.kubernetes is not None]
        wanted = [one for one in wanted if one.objectives]
        for gone in self._running.keys() - set(wanted):
            self._running.pop(gone).cancel()
            if self._found.pop(gone, None):
                self._tell()
        for new in [one for one in dict.fromkeys(wanted) if one not in self._running]:
            from gateway.discovery.kubernetes.objectives import PoolObjectives  # rare: a start has no use for it

            source = PoolObjectives(new, self._clock)
            following = source.follow(partial(self._on_found, new), partial(self._on_lost, new))
            self._running[new] = self._tasks.start(following, name=f"follow objectives of {new.label}")

    async def close(self) -> None:
        await self._tasks.close()

    def _on_found(self, where: KubernetesSettings, objectives: Mapping[str, int]) -> None:
        if self._found.get(where) != objectives:
            log.info("%s: %d objectives", where.label, len(objectives))
            self._found[where] = objectives
            self._tell()

    def _on_lost(self, where: KubernetesSettings, why: str) -> None:
        if (count := self._often.admit(where.label)) is not None:
            log.warning("%s: its objectives cannot be read: %s%s", where.label, why, left_out(count))

    def _tell(self) -> None:
        """Of one name the first pool's counts."""
        merged: dict[str, int] = {}
        for objectives in self._found.values():
            merged = {**objectives, **merged}
        self._sources.prioritize(merged)
