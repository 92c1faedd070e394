"""How much an engine's own counters of cache hits have grown between two scrapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.framework import EngineMetrics


class Found(NamedTuple):
    """Prompt tokens that an engine looked for in a cache, and those of them that it found there."""

    queried: float = 0.0
    hit: float = 0.0


NOTHING = Found()


@dataclass(slots=True)
class Lookups:
    """Of one core. The first look shows nothing: what was before it is not what the gateway has sent. A counter that is
    lower than before has begun anew, and all of it is new."""

    _own: Found | None = None
    _external: Found = NOTHING

    def grown(self, metrics: EngineMetrics) -> tuple[Found, Found]:
        """Since the last look: in its own cache, and in what a KV connector reaches."""
        own = Found(metrics.prefix_queries, metrics.prefix_hits)
        external = Found(metrics.external_queries, metrics.external_hits)
        first, before = self._own is None, (self._own or NOTHING, self._external)
        self._own, self._external = own, external
        return (NOTHING, NOTHING) if first else (_since(before[0], own), _since(before[1], external))

    def began_anew(self) -> None:
        """The engine is another process: whatever it counts is new, though it may be more than before."""
        if self._own is not None:
            self._own = self._external = NOTHING


def _since(before: Found, now: Found) -> Found:
    if now.queried < before.queried or now.hit < before.hit:
        return now
    return Found(now.queried - before.queried, now.hit - before.hit)
