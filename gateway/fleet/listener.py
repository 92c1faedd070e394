"""What the fleet tells those who keep something per endpoint, such as the cache index."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from gateway.fleet.kv_source import KvSource
from gateway.framework import Endpoint

log = logging.getLogger("kvgate.fleet")


class FleetListener(Protocol):
    """Called on the event loop, synchronously. For one endpoint: added first, dropped last, nothing after that."""

    def endpoint_added(self, endpoint: Endpoint, /) -> None: ...

    def endpoint_dropped(self, endpoint: Endpoint, /) -> None:
        """``Fleet.release_slot(endpoint.slot)`` is expected once nothing knows its slot any more."""

    def engine_restarted(self, endpoint: Endpoint, /) -> None:
        """Another process answers at its URL: what the old one held is gone. Called for each endpoint of the engine."""

    def engine_asleep(self, endpoint: Endpoint, /) -> None:
        """Its engine went to sleep, and so gave up its KV cache. Called for each endpoint of the engine, once."""

    def kv_source(self, endpoint: Endpoint, source: KvSource | None, /) -> None:
        """Where its KV events come from, told once it is known and whenever it changes; None: it sends none."""


class Listeners:
    """All listeners as one. One that raises is logged, and neither stops the others nor the engine's watch."""

    def __init__(self) -> None:
        self._all: list[FleetListener] = []

    def add(self, listener: FleetListener) -> None:
        self._all.append(listener)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._tell(lambda listener: listener.endpoint_added(endpoint))

    def endpoint_dropped(self, endpoint: Endpoint) -> None:
        self._tell(lambda listener: listener.endpoint_dropped(endpoint))

    def engine_restarted(self, endpoint: Endpoint) -> None:
        self._tell(lambda listener: listener.engine_restarted(endpoint))

    def engine_asleep(self, endpoint: Endpoint) -> None:
        self._tell(lambda listener: listener.engine_asleep(endpoint))

    def kv_source(self, endpoint: Endpoint, source: KvSource | None) -> None:
        self._tell(lambda listener: listener.kv_source(endpoint, source))

    def _tell(self, call: Callable[[FleetListener], None]) -> None:
        for listener in self._all:
            try:
                call(listener)
            except Exception:
                log.exception("a fleet listener failed: %r", listener)
