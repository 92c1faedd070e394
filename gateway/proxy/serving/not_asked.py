"""Requests that an engine did not answer: they are not repeated for a while, unless the engine restarts."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gateway.framework import Engine


@dataclass(frozen=True, slots=True)
class _Rest:
    """``until``: Clock.monotonic(). ``started``: the engine's process, as ``Engine.started``."""

    until: float
    started: float | None


class NotAsked:
    """By engine and kind of request. The entries of a removed engine are dropped with it."""

    def __init__(self) -> None:
        self._rests: WeakKeyDictionary[Engine, dict[str, _Rest]] = WeakKeyDictionary()

    def begin(self, engine: Engine, what: str, until: float) -> None:
        """Do not ask ``engine`` for ``what`` before the time ``until``, unless it restarts earlier."""
        self._rests.setdefault(engine, {})[what] = _Rest(until, engine.started)

    def has(self, engine: Engine, what: str, now: float) -> bool:
        rest = self._rests.get(engine, {}).get(what)
        return rest is not None and now < rest.until and rest.started == engine.started

    def __len__(self) -> int:
        """Engines with an entry."""
        return len(self._rests)
