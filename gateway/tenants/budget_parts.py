"""What hosts spend of budgets, added up; and how much more each of them may spend, so that all together spend no more
than the amount, but for what was in flight. See ``division.SPEND``.

It runs in the worker that leads, beside the requests: see ``divider.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.tenants.budgets import MONEY
from gateway.tenants.division import AT_ONCE, FORGET, SPEND, SPENT_LIVES, kept_of_budget, spending
from gateway.tenants.division import LEASE as LIVES
from gateway.tenants.limits_layout import (
    ACCOUNTS,
    AMOUNT,
    BUDGET,
    KIND,
    LEASE,
    LEFT,
    OTHERS,
    PERIOD,
    SAID,
    SYNCED,
    UNIT,
    WANTED,
)
from gateway.tenants.shared_rows import PERIODS
from gateway.tenants.shared_state import SharedState
from gateway.valkey.link import Link

SYNC = 1.0
"""Seconds between two sums of what was spent."""

DAYS = {"day": 86400, "month": 31 * 86400, "total": 3650 * 86400}

ALL = 2**53
"""More than any budget, in whole units that a script's numbers hold."""


class Said(NamedTuple):
    """What is said of the budget of a row: see ``SPEND``. ``at``: when, by Clock.monotonic()."""

    row: int
    hashed: int
    at: float
    key: str
    values: tuple[str, ...]
    period: float
    own: float
    scale: int
    idle: bool


class BudgetParts:
    """``start``: of the names on the server. ``host``: by which name it knows this one. ``channel``: on which others
    hear the name of an account of which more is wanted."""

    def __init__(self, state: SharedState, link: Link, *, start: str, channel: str, host: str) -> None:
        self._table, self._rows, self._clock = state.table, state.rows, state.rows.clock
        self._link = link
        self._key = f"{start}:budget"
        self._channel, self._host = channel, host
        self._seen = 0
        self._known: list[int] = []
        """Rows with a budget, when all were said."""
        self._said_at: float | None = None

    def forget(self) -> None:
        """Whatever was said may be lost: say all at once."""
        self._said_at = None

    async def step(self, heard: Iterable[str], now: float) -> None:
        """Say what is new, and all each second. ``heard``: accounts of which another host wants more. Raises Away."""
        table = self._table
        with table:
            wanted, self._seen = table.wanted - self._seen, table.wanted
            rows = [row for row in (table.find(ACCOUNTS, name) for name in heard) if row >= 0]
            if whole := self._said_at is None or now - self._said_at >= SYNC:
                self._said_at = now
                rows = self._known = [row for row in table.rows(ACCOUNTS) if table.floats[self._at(row) + KIND]]
            elif wanted:
                found = [row for row in self._known if table.floats[self._at(row) + WANTED]]
                if len(found) < wanted:  # to look through all takes a millisecond
                    found = [row for row in table.rows(ACCOUNTS) if table.floats[self._at(row) + WANTED]]
                rows += found
        rows = sorted(set(rows))
        for begin in range(0, len(rows), AT_ONCE):
            await self._say(rows[begin : begin + AT_ONCE])
        if rows and not whole:
            with table:
                table.divide(table.mode, table.replicas)  # whoever waits looks again

    async def _say(self, rows: Sequence[int]) -> None:
        with self._table:
            # Another host may want more for a name that has no budget here.
            said = [self._read(row) for row in rows if self._table.floats[self._at(row) + KIND]]
        if not said:
            return
        answers = await self._link.ask(
            *("EVAL", SPEND, len(said), *(one.key for one in said), self._channel, self._host),
            *(int(LIVES * 1000), self._table.replicas),
            *(value for one in said for value in one.values),
        )
        with self._table:
            for one, answer in zip(said, answers, strict=True):
                self._take(one, answer)

    def _read(self, row: int) -> Said:
        """What this host gives back it does not spend any more from here on."""
        table, rows, at = self._table, self._rows, self._at(row)
        cells, name = table.floats, table.name(ACCOUNTS, row)
        kind, unit = PERIODS[int(cells[at + KIND]) - 1], "money" if cells[at + UNIT] else "tokens"
        period, scale = rows.period(kind), MONEY if unit == "money" else 1
        own = rows.today(row).spent(kind, unit) - rows.kept(row, kind, unit)
        counters = rows.counters(table.counters(ACCOUNTS, row))
        in_flight = counters[2].value / MONEY if unit == "money" else float(counters[1].value)
        now = self._clock.monotonic()
        idle = not in_flight and now - table.idle_since(ACCOUNTS, row) >= FORGET
        wanted, cells[at + WANTED] = cells[at + WANTED], 0.0
        may = 0.0
        if cells[at + PERIOD] != period or idle:
            cells[at + SAID] = cells[at + LEASE] = 0.0
        elif cells[at + SAID]:
            may = max(0.0, cells[at + LEASE] - (own - cells[at + SYNCED]))
        keep = kept_of_budget(may, in_flight, cells[at + LEFT], table.replicas)
        if cells[at + SAID]:
            cells[at + LEASE] = min(cells[at + LEASE], own - cells[at + SYNCED] + keep)
        want = 0 if idle else ALL if wanted or not cells[at + SAID] else round(keep * scale)
        figures = cells[at + AMOUNT], own, in_flight, keep
        values = *(f"{figure * scale:.0f}" for figure in figures), str(want), str(SPENT_LIVES + DAYS[kind]), name
        key = f"{self._key}:{name}:{unit}:{period:.0f}"
        return Said(row, table.hash_of(ACCOUNTS, row), now, key, values, period, own, scale, idle)

    def _take(self, said: Said, answer: bytes) -> None:
        if self._table.hash_of(ACCOUNTS, said.row) != said.hashed:
            return
        others, may, left = spending(answer)
        cells, at = self._table.floats, self._at(said.row)
        cells[at + PERIOD], cells[at + OTHERS], cells[at + SYNCED] = said.period, others / said.scale, said.own
        cells[at + LEASE], cells[at + LEFT] = may / said.scale, left / said.scale
        # When it was asked, not answered: the server counts from then on, or later.
        cells[at + SAID] = 0.0 if said.idle else said.at

    def _at(self, row: int) -> int:
        return self._table.cells(ACCOUNTS, row) + BUDGET
