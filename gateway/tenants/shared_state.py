"""What is used of limits and budgets, in memory that all workers of a host share: see ``places.py``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Set

from gateway.framework import Clock
from gateway.tenants.accounts import Account
from gateway.tenants.limits_layout import ACCOUNTS
from gateway.tenants.limits_table import LimitsTable
from gateway.tenants.places import MeterPlace, Tally
from gateway.tenants.shared_places import SharedMeterPlace, SharedTally
from gateway.tenants.shared_rows import Rows

log = logging.getLogger("kvgate.tenants")

TOLD = 0.002
"""Seconds between two looks whether parts have changed, which another worker may write; only while someone waits."""

LOOK = 0.05
"""Seconds between two looks whether the other workers live: one look costs a microsecond for each of them."""


class SharedState:
    """In ``table``, of which this process is a worker. ``divided``: other hosts have parts of the limits, and spend of
    the budgets; ``Divider`` sees to that."""

    def __init__(self, table: LimitsTable, clock: Clock, *, divided: bool = False) -> None:
        self.table = table
        self.divided = divided
        self.rows = Rows(table, clock, divided=divided)
        self._clock = clock
        self._tallies: dict[str, SharedTally] = {}
        self._seen = 0
        self._again: set[str] = set()
        self._look_at = 0.0
        self._waiters: list[asyncio.Future[None]] = []
        self._told = 0

    def __enter__(self) -> None:
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK
            self.bury()
        self.table.__enter__()

    def __exit__(self, *raised: object) -> None:
        self.table.__exit__()

    def close(self) -> None:
        self.table.close()

    def bury(self) -> None:
        """Give back what workers that are dead have left under way."""
        for number in self.table.bury():
            log.info("worker %d has ended: what it had under way counts no more for limits", number)

    def meter(self, name: str, pattern: str) -> MeterPlace:
        with self.table:
            return SharedMeterPlace(self.rows, f"{name}\0{pattern}")

    def tally(self, name: str) -> Tally:
        tally = self._tallies.get(name)
        if tally is None:
            with self.table:
                tally = self._tallies[name] = SharedTally(self.rows, name)
        return tally

    def forget(self, name: str) -> None:
        """Its row stays until its place is wanted: other workers may use it."""
        self._tallies.pop(name, None)

    # saving

    @property
    def is_loaded(self) -> bool:
        return self.table.is_loaded

    @is_loaded.setter
    def is_loaded(self, value: bool) -> None:
        self.table.is_loaded = value

    async def told(self, patience: float) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        if len(self._waiters) == 1:
            self._told = self.table.told
            loop.call_later(TOLD, self._wake)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await waiter

    def _wake(self) -> None:
        """All who wait, with one look for all of them."""
        self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
        if self._waiters and self.table.fd >= 0 and self.table.told == self._told:
            asyncio.get_running_loop().call_later(TOLD, self._wake)
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    def leads(self) -> bool:
        return self.table.lead()

    def hold_file(self) -> None:
        self.table.hold_file()

    def release_file(self) -> None:
        self.table.release_file()

    def names(self) -> Set[str]:
        with self.table:
            rows = {row: self.rows.name(row) for row in self.table.rows(ACCOUNTS)}
        return set(rows.values())

    def put(self, name: str, account: Account) -> None:
        with self.table:
            row = self.table.take(ACCOUNTS, name, self.rows.is_idle_of_header)
            if row < 0:
                self.rows.full("accounts")
            else:
                self.rows.keep(row, account)

    def take_changed(self) -> dict[str, Account]:
        with self.table:
            self._seen, rows = self.table.changes(ACCOUNTS, self._seen)
            found = {self.rows.name(row): self.rows.read(row) for row in rows}
            for name in self._again - found.keys():
                if (row := self.table.find(ACCOUNTS, name)) >= 0:
                    found[name] = self.rows.read(row)
        self._again.clear()
        return found

    def put_back(self, names: Collection[str]) -> None:
        self._again.update(names)
