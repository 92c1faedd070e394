"""What all parts of a fleet share; and how it notifies those who keep something for each endpoint, such as the cache
index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Concatenate, ParamSpec, Protocol

from gateway.core.observer import Observer
from gateway.core.pauses import Pauses
from gateway.fleet.kv_source import KvSource
from gateway.fleet.reports import Reports
from gateway.fleet.settings import FleetSettings
from gateway.framework import Clock, Endpoint

log = logging.getLogger("kvgate.fleet")

Arguments = ParamSpec("Arguments")


class FleetListener(Protocol):
    """Called on the event loop, synchronously. For one endpoint: added first, dropped last, nothing after that."""

    def endpoint_added(self, endpoint: Endpoint, /) -> None: ...

    def endpoint_dropped(self, endpoint: Endpoint, /) -> None:
        """The listener calls ``Fleet.release_slot(endpoint.slot)`` once it has no bit of that slot left."""

    def engine_restarted(self, endpoint: Endpoint, /) -> None:
        """Another process answers at its URL, whose KV cache is empty. Called for each endpoint of the engine."""

    def engine_asleep(self, endpoint: Endpoint, /) -> None:
        """Its engine went to sleep and gave up its KV cache. Called once for each endpoint of the engine."""

    def kv_source(self, endpoint: Endpoint, source: KvSource | None, /) -> None:
        """Where its KV events come from: once it is known, and whenever it changes. None: it sends none."""


class Listeners:
    """All listeners. One that raises is logged, and stops neither the others nor the engine's watch."""

    def __init__(self) -> None:
        self._all: list[FleetListener] = []

    def add(self, listener: FleetListener) -> None:
        self._all.append(listener)

    def notify(
        self,
        event: Callable[Concatenate[FleetListener, Arguments], None],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Call the method ``event`` of each: ``notify(FleetListener.endpoint_added, endpoint)``."""
        for listener in self._all:
            try:
                getattr(listener, event.__name__)(*args, **kwargs)
            except Exception:
                log.exception("a fleet listener failed: %r", listener)


@dataclass(frozen=True, slots=True)
class FleetContext:
    """What all parts of a fleet share. ``pauses``: of our own event loop. ``numbers``: of the watches, in the order in
    which they are made. ``reports``: of the host's other workers; None: there are none."""

    settings: FleetSettings
    clock: Clock
    observer: Observer
    random: Random
    reports: Reports | None = None
    listeners: Listeners = field(default_factory=Listeners)
    pauses: Pauses = field(default_factory=Pauses)
    numbers: Iterator[int] = field(default_factory=count)
