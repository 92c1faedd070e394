"""What is used of limits and budgets, in memory that all workers of a host share: see ``places.py``.

A row that nobody uses may be given to another name. A request keeps its rows: as long as it is under way, it is counted
in each of them. So a row's name is compared when a request begins (``look``), and not later.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Set

from gateway.framework import Clock
from gateway.tenants.accounts import Account, Calendar, Counts
from gateway.tenants.gcra import CELLS, is_empty
from gateway.tenants.limits_table import ACCOUNTS, METERS, LimitsTable
from gateway.tenants.places import Cells, Counter, MeterPlace, OwnMeterPlace, OwnTally, Tally

log = logging.getLogger("kvgate.tenants")

LOOK = 0.05
"""Seconds between two looks whether the other workers live: one look costs a microsecond for each of them."""

TRY_AGAIN = 1.0
"""Seconds after which a name without a row is tried again."""

_FIGURES = struct.Struct("16d")
"""Of an account: its day as a number, and the five figures of today, of the month before, of all before that."""


class SharedCounter:
    """``cells``: of all workers. ``own``: which one is this worker's."""

    __slots__ = ("_cells", "_own")

    def __init__(self, cells: memoryview, own: int) -> None:
        self._cells = cells
        self._own = own

    @property
    def value(self) -> int:
        return sum(self._cells)

    def add(self, amount: int) -> None:
        self._cells[self._own] += amount


class SharedMeterPlace:
    """A row of meters, or, where there is no room for one, a place in this process for this worker's share."""

    __slots__ = (
        *("_hash", "_name", "_row", "_state", "_try_at", "concurrent", "queued", "requests", "share"),
        *("tokens", "tokens_in_flight"),
    )

    def __init__(self, state: SharedState, name: str) -> None:
        self._state = state
        self._name = name
        self._hash = state.table.hash(METERS, name)
        self._row = -1
        self._try_at = 0.0
        self.share = 1.0
        self._use(OwnMeterPlace(CELLS))
        self._find(state.clock.monotonic())

    def _use(self, place: MeterPlace) -> None:
        self.requests: Cells = place.requests
        self.tokens: Cells = place.tokens
        self.concurrent: Counter = place.concurrent
        self.tokens_in_flight: Counter = place.tokens_in_flight
        self.queued: Counter = place.queued

    def look(self) -> bool:
        state = self._state
        now = state.clock.monotonic()
        if self._row >= 0 and state.table.hash_of(METERS, self._row) == self._hash:
            state.table.used(METERS, self._row, now)
            return False
        if self._row < 0 and (now < self._try_at or self.concurrent.value):
            return False
        return self._find(now)

    def _find(self, now: float) -> bool:
        """Whether its place is another one now."""
        state, before = self._state, self._row
        self._row = row = state.table.take(METERS, self._name, state.rests)
        if row < 0:
            self._try_at = now + TRY_AGAIN
            state.full("limits")
            if before >= 0:
                self._use(OwnMeterPlace(CELLS))
            self.share = 1 / state.table.workers
            return before >= 0
        table = state.table
        table.used(METERS, row, now)
        at = table.cells(METERS, row)
        self.requests = table.floats[at : at + CELLS]
        self.tokens = table.floats[at + CELLS : at + 2 * CELLS]
        self.concurrent, self.tokens_in_flight, self.queued = state.counters(table.counters(METERS, row))
        self.share = 1.0
        return True


class SharedTally:
    """A row of accounts, or, where there is no room for one, an account in this process, with this worker's share."""

    __slots__ = ("_hash", "_name", "_own", "_row", "_state", "_try_at", "money", "open", "share", "tokens")

    def __init__(self, state: SharedState, name: str) -> None:
        self._state = state
        self._name = name
        self._hash = state.table.hash(ACCOUNTS, name)
        self._row = -1
        self._try_at = 0.0
        self._own = OwnTally(name, state.calendar, set(), Account())
        self.share = 1.0
        self.open: Counter = self._own.open
        self.tokens: Counter = self._own.tokens
        self.money: Counter = self._own.money
        self._find()

    def look(self) -> None:
        state = self._state
        if self._row >= 0 and state.table.hash_of(ACCOUNTS, self._row) == self._hash:
            state.table.used(ACCOUNTS, self._row, state.clock.monotonic())
        elif self._row >= 0 or (state.clock.monotonic() >= self._try_at and not self.open.value):
            self._find()

    def read(self) -> Account:
        self.look()
        if self._row < 0:
            return self._own.read()
        calendar = self._state.calendar
        calendar.look()
        account = self._state.read(self._row)
        account.roll(calendar.day)
        return account

    def charge(self, prompt: int, cached: int, output: int, cost: float) -> None:
        if self._row < 0:
            self._own.charge(prompt, cached, output, cost)
            return
        account = self.read()
        account.add(prompt, cached, output, cost)
        self._state.write(self._row, account)

    def _find(self) -> None:
        state, before = self._state, self._row
        now = state.clock.monotonic()
        self._row = row = state.table.take(ACCOUNTS, self._name, state.is_idle_of_header)
        if row >= 0:
            state.table.used(ACCOUNTS, row, now)
            self.open, self.tokens, self.money = state.counters(state.table.counters(ACCOUNTS, row))
            self.share = 1.0
            return
        self._try_at = now + TRY_AGAIN
        state.full("accounts")
        self.share = 1 / state.table.workers
        if before >= 0:
            self._own = OwnTally(self._name, state.calendar, set(), Account())
            self.open, self.tokens, self.money = self._own.open, self._own.tokens, self._own.money


class SharedState:
    """In ``table``, of which this process is a worker."""

    def __init__(self, table: LimitsTable, clock: Clock) -> None:
        self.table = table
        self.clock = clock
        self.calendar = Calendar(clock)
        self._tallies: dict[str, SharedTally] = {}
        self._names: dict[int, tuple[int, str]] = {}
        self._seen = 0
        self._again: set[str] = set()
        self._look_at = 0.0
        self._said: set[str] = set()

    def __enter__(self) -> None:
        now = self.clock.monotonic()
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
            return SharedMeterPlace(self, f"{name}\0{pattern}")

    def tally(self, name: str) -> Tally:
        tally = self._tallies.get(name)
        if tally is None:
            with self.table:
                tally = self._tallies[name] = SharedTally(self, name)
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

    def leads(self) -> bool:
        return self.table.lead()

    def hold_file(self) -> None:
        self.table.hold_file()

    def release_file(self) -> None:
        self.table.release_file()

    def names(self) -> Set[str]:
        with self.table:
            rows = {row: self._name(row) for row in self.table.rows(ACCOUNTS)}
        return set(rows.values())

    def put(self, name: str, account: Account) -> None:
        with self.table:
            row = self.table.take(ACCOUNTS, name, self.is_idle_of_header)
            if row < 0:
                self.full("accounts")
            else:
                self.write(row, account)

    def take_changed(self) -> dict[str, Account]:
        with self.table:
            self._seen, rows = self.table.changes(ACCOUNTS, self._seen)
            found = {self._name(row): self.read(row) for row in rows}
            for name in self._again - found.keys():
                if (row := self.table.find(ACCOUNTS, name)) >= 0:
                    found[name] = self.read(row)
        self._again.clear()
        return found

    def put_back(self, names: Collection[str]) -> None:
        self._again.update(names)

    # rows, within its lock

    def counters(self, at: int) -> tuple[SharedCounter, SharedCounter, SharedCounter]:
        """The three that are at ``at``."""
        table = self.table
        workers, own = table.workers, table.number
        first, second, third = (
            SharedCounter(table.ints[start : start + workers], own) for start in range(at, at + 3 * workers, workers)
        )
        return first, second, third

    def rests(self, row: int) -> bool:
        """Whether a row of meters would be the same if it were made anew."""
        table = self.table
        at = table.cells(METERS, row)
        counters = table.counters(METERS, row)
        if any(table.ints[counters : counters + METERS.counters * table.workers]):
            return False
        buckets = table.floats[at : at + CELLS], table.floats[at + CELLS : at + 2 * CELLS]
        now = self.clock.monotonic()
        return all(is_empty(bucket, now) for bucket in buckets)

    def is_idle_of_header(self, row: int) -> bool:
        """Whether a row of accounts is of a tenant that only a header names, and has nothing under way."""
        table, at = self.table, self.table.counters(ACCOUNTS, row)
        return not any(table.ints[at : at + table.workers]) and self._name(row).startswith("header:")

    def read(self, row: int) -> Account:
        floats, at = self.table.floats, self.table.cells(ACCOUNTS, row)
        begin = at + 1 + 16 * int(floats[at])
        day, *figures = _FIGURES.unpack_from(self.table.memory, 8 * begin)
        number = int(day)
        written = f"{number // 10000:04}-{number // 100 % 100:02}-{number % 100:02}" if number else ""
        return Account(written, _counts(figures[:5]), _counts(figures[5:10]), _counts(figures[10:]))

    def write(self, row: int, account: Account) -> None:
        """Into the copy that does not count, which counts then: one that is killed meanwhile has changed nothing."""
        floats, at = self.table.floats, self.table.cells(ACCOUNTS, row)
        other = 1 - int(floats[at])
        day = float(account.day.replace("-", "") or 0)
        figures = [
            float(figure)
            for counts in (account.today, account.month, account.before)
            for figure in (counts.requests, counts.prompt, counts.cached, counts.output, counts.cost)
        ]
        _FIGURES.pack_into(self.table.memory, 8 * (at + 1 + 16 * other), day, *figures)
        floats[at] = float(other)
        self.table.changed(ACCOUNTS, row)

    def full(self, what: str) -> None:
        """Say it once."""
        if what not in self._said:
            self._said.add(what)
            log.error(
                "the workers' memory for %s is full: of each further tenant or key a worker allows its share, 1 of %d",
                *(what, self.table.workers),
            )

    def _name(self, row: int) -> str:
        hashed = self.table.hash_of(ACCOUNTS, row)
        known = self._names.get(row)
        if known is None or known[0] != hashed:
            known = self._names[row] = hashed, self.table.name(ACCOUNTS, row)
        return known[1]


def _counts(figures: list[float]) -> Counts:
    requests, prompt, cached, output, cost = figures
    return Counts(int(requests), int(prompt), int(cached), int(output), cost)
