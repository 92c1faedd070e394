"""The rows of meters and accounts in memory that all workers of a host share: what is in their cells."""

from __future__ import annotations

import logging
import struct
from enum import IntEnum
from math import inf

from gateway.framework import Clock
from gateway.tenants.accounts import Account, Calendar, Counts
from gateway.tenants.division import LEASE as LIVES
from gateway.tenants.gcra import CELLS, is_empty
from gateway.tenants.limit_settings import BudgetSettings
from gateway.tenants.limits_layout import (
    ACCOUNTS,
    AMOUNT,
    BUDGET,
    KEPT,
    KIND,
    LEASE,
    LEFT,
    METERS,
    OTHERS,
    PERIOD,
    SAID,
    SYNCED,
    UNIT,
    WANTED,
)
from gateway.tenants.limits_table import LimitsTable

log = logging.getLogger("kvgate.tenants")


PERIODS = ("day", "month", "total")

SAID_LATELY = 0.2
"""Seconds for which it counts that the store had nothing left: who is refused meanwhile asks for nothing more."""


class Mode(IntEnum):
    """How limits are divided between hosts. ``UNKNOWN``: the store was not reached yet. ``DIVIDED``: this host uses the
    parts that the store has given it. While the store is away: ``SHARE``: as many parts as hosts were last known;
    ``OPEN``: no limits; ``CLOSED``: nothing is let through."""

    UNKNOWN, DIVIDED, SHARE, OPEN, CLOSED = range(5)


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


class Rows:
    """Within the lock of ``table``. ``divided``: other hosts have parts of the limits, and spend of the budgets."""

    def __init__(self, table: LimitsTable, clock: Clock, *, divided: bool = False) -> None:
        self.table = table
        self.clock = clock
        self.calendar = Calendar(clock)
        self.divided = divided
        self._names: dict[int, tuple[int, str]] = {}
        self._said: set[str] = set()
        self._day = ("", 0.0)

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
        return not any(table.ints[at : at + table.workers]) and self.name(row).startswith("header:")

    def read(self, row: int) -> Account:
        at = self.table.cells(ACCOUNTS, row)
        return self._read(at + 1 + 16 * int(self.table.floats[at]))

    def today(self, row: int) -> Account:
        """As of today."""
        self.calendar.look()
        account = self.read(row)
        account.roll(self.calendar.day)
        return account

    def spent(self, row: int, per: str, unit: str) -> float:
        """As ``today(row).spent(per, unit)``, and thrice as fast where it has been used today."""
        at, floats = self.table.cells(ACCOUNTS, row), self.table.floats
        copy = at + 1 + 16 * int(floats[at])
        if floats[copy] != self._today():
            return self.today(row).spent(per, unit)
        spent = 0.0
        for begin in range(copy + 1, copy + 1 + 5 * (PERIODS.index(per) + 1), 5):  # today, the month, all before
            spent += floats[begin + 1] + floats[begin + 3] if unit == "tokens" else floats[begin + 4]
        return spent

    def charge(self, row: int, prompt: int, cached: int, output: int, cost: float) -> None:
        """As if its account of today were changed and written, and thrice as fast where it has been used today."""
        at, floats, memory = self.table.cells(ACCOUNTS, row), self.table.floats, self.table.memory
        now = int(floats[at])
        before, after = at + 1 + 16 * now, at + 1 + 16 * (1 - now)
        if floats[before] != self._today():
            account = self.today(row)
            account.add(prompt, cached, output, cost)
            self.write(row, account)
            return
        memory[8 * after : 8 * after + _FIGURES.size] = memory[8 * before : 8 * before + _FIGURES.size]
        floats[after + 1] += 1
        floats[after + 2] += prompt
        floats[after + 3] += cached
        floats[after + 4] += output
        floats[after + 5] += cost
        floats[at] = float(1 - now)
        self.table.changed(ACCOUNTS, row)

    def _today(self) -> float:
        """The day as the number that rows have."""
        self.calendar.look()
        if self._day[0] != self.calendar.day:
            self._day = self.calendar.day, float(self.calendar.day.replace("-", ""))
        return self._day[1]

    def write(self, row: int, account: Account) -> None:
        """Into the copy that does not count, which counts then: one that is killed meanwhile has changed nothing."""
        floats, at = self.table.floats, self.table.cells(ACCOUNTS, row)
        other = 1 - int(floats[at])
        self._write(at + 1 + 16 * other, account)
        floats[at] = float(other)
        self.table.changed(ACCOUNTS, row)

    def keep(self, row: int, account: Account) -> None:
        """What was kept from before, and is ``row`` now."""
        self._write(self.table.cells(ACCOUNTS, row) + BUDGET + KEPT, account)
        self.write(row, account)

    def _read(self, at: int) -> Account:
        day, *figures = _FIGURES.unpack_from(self.table.memory, 8 * at)
        number = int(day)
        written = f"{number // 10000:04}-{number // 100 % 100:02}-{number % 100:02}" if number else ""
        return Account(written, _counts(figures[:5]), _counts(figures[5:10]), _counts(figures[10:]))

    def _write(self, at: int, account: Account) -> None:
        day = float(account.day.replace("-", "") or 0)
        figures = [
            float(figure)
            for counts in (account.today, account.month, account.before)
            for figure in (counts.requests, counts.prompt, counts.cached, counts.output, counts.cost)
        ]
        _FIGURES.pack_into(self.table.memory, 8 * at, day, *figures)

    def full(self, what: str) -> None:
        """Say it once."""
        if what not in self._said:
            self._said.add(what)
            log.error(
                "the workers' memory for %s is full: of each further tenant or key a worker allows its share, 1 of %d",
                *(what, self.table.workers),
            )

    def name(self, row: int) -> str:
        hashed = self.table.hash_of(ACCOUNTS, row)
        known = self._names.get(row)
        if known is None or known[0] != hashed:
            known = self._names[row] = hashed, self.table.name(ACCOUNTS, row)
        return known[1]

    # the budget of an account, which hosts share

    def beyond(self, row: int, budget: BudgetSettings, own: float) -> float:
        """See ``Tally.beyond``. Where it is not known what this host may spend, it may spend its share of all, or less
        if others have left less of it. While the store is away, and the fallback is ``share``, each of the others is
        thought to spend as much as this host does."""
        table, at = self.table, self._budget(row, budget)
        cells, mode = table.floats, table.mode
        if mode == Mode.OPEN:
            return -inf
        if mode == Mode.CLOSED:
            return inf
        kept = self.kept(row, budget.per, budget.unit)
        if mode == Mode.SHARE and cells[at + PERIOD] == self.period(budget.per):
            growth = max(0.0, own - kept - cells[at + SYNCED])
            return self.elsewhere(row, budget) + growth * (table.replicas - 1)
        if mode == Mode.DIVIDED and self._told_at(at, budget):
            return budget.amount - (cells[at + SYNCED] + kept + cells[at + LEASE])
        return max(budget.amount * (1 - 1 / table.replicas), self.elsewhere(row, budget))

    def elsewhere(self, row: int, budget: BudgetSettings) -> float:
        """See ``Tally.elsewhere``."""
        cells, at = self.table.floats, self._budget(row, budget)
        if cells[at + PERIOD] != self.period(budget.per):
            return 0.0
        # The server knows what this host spent before it was restarted as another one's.
        return max(0.0, cells[at + OTHERS] - self.kept(row, budget.per, budget.unit))

    def lacks(self, row: int, budget: BudgetSettings, own: float, in_flight: float) -> bool:
        """See ``Tally.lacks``."""
        table, at = self.table, self._budget(row, budget)
        cells, now = table.floats, self.clock.monotonic()
        if table.mode != Mode.DIVIDED:
            return False
        said = self._told_at(at, budget)
        used = own + in_flight - self.kept(row, budget.per, budget.unit) - cells[at + SYNCED]
        lacks = not said or used >= cells[at + LEASE]
        if not lacks and used <= cells[at + LEASE] / 2:
            return False
        if said and not cells[at + LEFT] and now - said < SAID_LATELY:
            return False
        if not cells[at + WANTED]:
            cells[at + WANTED] = 1.0
            table.want()
        return lacks

    def _told_at(self, at: int, budget: BudgetSettings) -> float:
        """When the store was asked what this host may spend in the present period, if that still counts; else 0: the
        store may have given it to another host, whoever here has not noticed that."""
        cells = self.table.floats
        said = cells[at + SAID]
        lives = cells[at + PERIOD] == self.period(budget.per) and self.clock.monotonic() - said < LIVES
        return said if lives else 0.0

    def _budget(self, row: int, budget: BudgetSettings) -> int:
        """Where its cells are, which say from now on that it is this."""
        cells, at = self.table.floats, self.table.cells(ACCOUNTS, row) + BUDGET
        cells[at + KIND], cells[at + UNIT] = PERIODS.index(budget.per) + 1, budget.unit == "money"
        cells[at + AMOUNT] = budget.amount
        return at

    def kept(self, row: int, per: str, unit: str) -> float:
        """What was spent of the present period before this memory was made."""
        at = self.table.cells(ACCOUNTS, row) + BUDGET + KEPT
        if not self.table.floats[at]:  # the day of what was kept: there is nothing
            return 0.0
        account = self._read(at)
        self.calendar.look()
        account.roll(self.calendar.day)
        return account.spent(per, unit)

    def period(self, per: str) -> float:
        """The present one, as a number: 20261128, 202611, or 1 for ``total``."""
        self.calendar.look()
        text = {"day": self.calendar.day, "month": self.calendar.month}.get(per, "1")
        return float(text.replace("-", ""))


def _counts(figures: list[float]) -> Counts:
    requests, prompt, cached, output, cost = figures
    return Counts(int(requests), int(prompt), int(cached), int(output), cost)
