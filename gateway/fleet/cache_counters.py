"""The increase of an engine's own cache hit counters between two scrapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.framework.fleet import EngineMetrics


class CacheLookups(NamedTuple):
    """Prompt tokens that an engine looked up in a cache, and those of them that it found."""

    queried: float = 0.0
    hit: float = 0.0


NOTHING = CacheLookups()


@dataclass(slots=True)
class CacheCounters:
    """The counters of one engine core.

    The first update reports no increase: what was counted before it was not sent by this gateway. A counter that is
    lower than before was reset, and its whole value is an increase.
    """

    _own: CacheLookups | None = None
    _external: CacheLookups = NOTHING

    def update(self, metrics: EngineMetrics) -> tuple[CacheLookups, CacheLookups]:
        """Returns the increase since the last update: in the engine's own cache, and in what a KV connector reaches."""
        own = CacheLookups(metrics.prefix_queries, metrics.prefix_hits)
        external = CacheLookups(metrics.external_queries, metrics.external_hits)
        first, before = self._own is None, (self._own or NOTHING, self._external)
        self._own, self._external = own, external
        return (NOTHING, NOTHING) if first else (_since(before[0], own), _since(before[1], external))

    def restart(self) -> None:
        """The engine is another process: its counters began at zero, also if they are above the last ones."""
        if self._own is not None:
            self._own = self._external = NOTHING


def _since(before: CacheLookups, now: CacheLookups) -> CacheLookups:
    if now.queried < before.queried or now.hit < before.hit:
        return now
    return CacheLookups(now.queried - before.queried, now.hit - before.hit)
