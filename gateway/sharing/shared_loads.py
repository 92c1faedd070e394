"""The loads of a fleet's engine cores, shared with the other processes of this gateway as endpoints come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.fleet.load.ledger import Ledger
from gateway.framework import Clock, Endpoint
from gateway.sharing.load_memory import TableFull
from gateway.sharing.load_table import LoadTable
from gateway.sharing.seat import Seat
from gateway.sharing.settings import SharingSettings

log = logging.getLogger("kvgate.sharing")

TICK = 0.05
"""Seconds between looks at what time alone brings. A worker that has died holds no load for longer, and a scrape finds
how many of the others' requests have just ended to within less than an engine's gauges lag behind."""


class SharedLoads:
    """A listener of the fleet, which binds each core's ledger in ``table`` while an endpoint is on it."""

    def __init__(self, table: LoadTable, clock: Clock) -> None:
        self.table = table
        self._limit = LogLimit(clock)
        self._endpoints: dict[Ledger, set[Endpoint]] = {}
        self._tasks = TaskSet()

    @classmethod
    def of(cls, seat: Seat | None, settings: SharingSettings, clock: Clock) -> SharedLoads | None:
        """With the other workers of this host, if ``seat`` is one of several, and with other hosts, if the settings
        name a server. None: there are no others.

        Raises TableFull where another process has this seat.
        """
        if seat is not None and seat.loads_fd >= 0:
            return cls(LoadTable(seat.loads_fd, seat.number, soon=_soon), clock)
        return None if settings.url is None else cls(LoadTable.create(0, soon=_soon), clock)

    def start(self) -> None:
        """Look at what time alone brings, until ``close``."""
        self._tasks.start(self._tick(), name="share loads")

    async def close(self) -> None:
        """What runs on is not shared any more."""
        await self._tasks.close()
        self.table.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                gone = self.table.tick()
            except Exception:  # a defect must not keep for ever what others have booked
                if (count := self._limit.admit("look")) is not None:
                    log.exception("the loads of others could not be looked at%s", left_out(count))
                continue
            for worker in gone:
                log.warning("worker %d has ended: its requests do not count as load any more", worker)

    # what the fleet tells

    def endpoint_added(self, endpoint: Endpoint, /) -> None:
        ledger = endpoint.load
        assert isinstance(ledger, Ledger)
        endpoints = self._endpoints.setdefault(ledger, set())
        if not endpoints:
            try:
                self.table.bind(core_name(endpoint), ledger)
            except TableFull as error:
                log.error("endpoint %s: its load is not shared: %s", endpoint.name, error)
        endpoints.add(endpoint)

    def endpoint_dropped(self, endpoint: Endpoint, /) -> None:
        ledger = endpoint.load
        assert isinstance(ledger, Ledger)
        endpoints = self._endpoints[ledger]
        endpoints.remove(endpoint)
        if not endpoints:
            del self._endpoints[ledger]
            self.table.release(core_name(endpoint), ledger)

    def engine_restarted(self, endpoint: Endpoint, /) -> None:
        pass

    def engine_asleep(self, endpoint: Endpoint, /) -> None:
        pass

    def kv_source(self, endpoint: Endpoint, source: object, /) -> None:
        pass


def core_name(endpoint: Endpoint) -> str:
    """The name by which all processes know the engine core of this endpoint: its engine's, and the rank."""
    return endpoint.engine.name if endpoint.rank is None else f"{endpoint.engine.name}/{endpoint.rank}"


def _soon(call: Callable[[], None]) -> None:
    """Where no loop runs, nothing is placed."""
    try:
        asyncio.get_running_loop().call_soon(call)
    except RuntimeError:
        call()
