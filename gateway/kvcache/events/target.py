"""What an event stream is about: an endpoint, its engine, and the index that its events go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.observer import Observer
from gateway.framework import Clock
from gateway.kvcache.index.cache_index import CacheIndex

REPLAY_TIMEOUT = 5.0
"""Seconds without a message after which a replay is asked for again: an engine's publisher looks for such requests
several times a second, so that one which is silent for so long has lost it."""


@dataclass(frozen=True, slots=True)
class EventTarget:
    """Whose events are read, and into which index.

    ``slot``, ``name``: the endpoint's. ``replay``: address of its engine's ROUTER socket; None: nothing from before the
    subscription can be known. ``rank``: as the engine numbers its data-parallel ranks; None: not known. ``rekeyed``:
    called, in a turn of the loop of its own, when an event has changed the index's unit; all streams of the index are
    to be restarted then. ``timeout``: seconds without a message after which a replay is asked for again.
    """

    slot: int
    name: str
    replay: str | None
    rank: int | None
    index: CacheIndex
    observer: Observer
    clock: Clock
    rekeyed: Callable[[], None]
    timeout: float = REPLAY_TIMEOUT
