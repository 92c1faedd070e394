"""Replicas on one real server, of which only the bus is there."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Protocol

from gateway.core.clock import SystemClock
from gateway.core.observer import Observer
from gateway.sharing.bus import Bus
from gateway.sharing.settings import SharingSettings
from gateway.tenants.settings import ValkeySettings
from tests.sharing.plain_table import PlainTable
from tests.support.valkey import ValkeyServer
from tests.support.wait import eventually as within_seconds

CHANNEL = "kvgate:tests:loads"


async def eventually(condition, what: str = "what is waited for") -> None:
    await within_seconds(condition, what, within=30.0)


class Counting(Observer):
    def __init__(self) -> None:
        self.dropped = Counter()

    def bus_dropped(self, reason: str) -> None:
        self.dropped[reason] += 1


class Reached(Protocol):
    """A server, or what is before it."""

    settings: ValkeySettings


class Replica:
    def __init__(self, server: Reached, name: str, clock: SystemClock | None = None) -> None:
        self.table = PlainTable()
        self.observer = Counting()
        self.bus = Bus(
            SharingSettings(server.settings.url, "tests"),
            self.table,
            range(256, 320),
            replica=name,
            place=f"{name}:8000",
            clock=clock or SystemClock(),
            observer=self.observer,
            chance=random.Random(name),
        )

    @property
    def fresh(self) -> int:
        return self.bus.states()["fresh"]


@contextlib.asynccontextmanager
async def replicas(server: ValkeyServer, *names: str) -> AsyncIterator[list[Replica]]:
    made = [Replica(server, name) for name in names]
    for one in made:
        one.bus.start()
    try:
        await eventually(lambda: all(one.fresh == len(names) - 1 for one in made), "all hear each other")
        yield made
    finally:
        for one in made:
            await one.bus.close()
