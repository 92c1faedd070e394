"""Places in memory that all workers of a host share: see ``places.py``.

A row that nobody uses may be given to another name. A request keeps its rows: as long as it is under way, it is counted
in each of them. So a row's name is compared when a request begins (``look``), and not later.
"""

from __future__ import annotations

from dataclasses import fields
from hashlib import blake2b

from gateway.tenants.accounts import Account
from gateway.tenants.gcra import CELLS
from gateway.tenants.limit_settings import NO_LIMITS, BudgetSettings, LimitSettings
from gateway.tenants.limits_layout import ACCOUNTS, ELSEWHERE, LIMITS, METERS, PART, ROOM, TOLD, WANT, WHOLE
from gateway.tenants.places import Cells, Counter, Limit, OwnMeterPlace, OwnTally
from gateway.tenants.shared_rows import Mode, Rows

TRY_AGAIN = 1.0
"""Seconds after which a name without a row is tried again."""

TOLD_LATELY = 0.2
"""Seconds for which it counts that the store had nothing left: who is refused meanwhile asks for nothing more."""

ROUNDING = 1e-6
"""Units that may lack of a part: it is a sum of others."""

OPEN = 1e6
"""Limits where they are open: so many times the whole. A bucket of that size is empty at once."""


class SharedMeterPlace:
    """A row of meters, or, where there is no room for one, a place in this process for this worker's share."""

    __slots__ = (
        *(
            "_at",
            "_hash",
            "_name",
            "_own",
            "_row",
            "_rows",
            "_try_at",
            "_waiting",
            "_wanted",
            "concurrent",
            "divided",
            "queued",
        ),
        *("requests", "tokens", "tokens_in_flight"),
    )

    def __init__(self, rows: Rows, name: str) -> None:
        self._rows = rows
        # The same on all hosts, which find what they divide by it.
        self._name = blake2b(name.encode(), digest_size=16).hexdigest()
        self._hash = rows.table.hash(METERS, self._name)
        self._row = -1
        self._at = 0
        self._try_at = 0.0
        self._wanted = NO_LIMITS
        self._waiting = [0.0] * LIMITS
        self.divided = False
        self._use(OwnMeterPlace(CELLS, 1 / rows.table.workers))
        self._find(rows.clock.monotonic())

    def _use(self, own: OwnMeterPlace) -> None:
        self._own = own
        self.requests: Cells = own.requests
        self.tokens: Cells = own.tokens
        self.concurrent: Counter = own.concurrent
        self.tokens_in_flight: Counter = own.tokens_in_flight
        self.queued: Counter = own.queued

    def look(self) -> bool:
        rows = self._rows
        now = rows.clock.monotonic()
        if self._row >= 0 and rows.table.hash_of(METERS, self._row) == self._hash:
            rows.table.used(METERS, self._row, now)
            return False
        if self._row < 0 and (now < self._try_at or self.concurrent.value):
            return False
        return self._find(now)

    def _find(self, now: float) -> bool:
        """Whether its place is another one now."""
        rows, before = self._rows, self._row
        self._row = row = rows.table.take(METERS, self._name, rows.rests)
        self.divided = rows.divided and row >= 0
        if row < 0:
            self._try_at = now + TRY_AGAIN
            rows.full("limits")
            if before >= 0:
                self._use(OwnMeterPlace(CELLS, 1 / rows.table.workers))
            return before >= 0
        table = rows.table
        table.used(METERS, row, now)
        self._at = at = table.cells(METERS, row)
        self.requests = table.floats[at : at + CELLS]
        self.tokens = table.floats[at + CELLS : at + 2 * CELLS]
        self.concurrent, self.tokens_in_flight, self.queued = rows.counters(table.counters(METERS, row))
        self.want(self._wanted)
        return True

    def want(self, settings: LimitSettings) -> None:
        self._wanted = settings
        if self.divided:
            for limit, field in enumerate(fields(settings)):
                self._rows.table.floats[self._at + WHOLE + limit] = getattr(settings, field.name) or 0.0

    def part(self, limit: Limit, whole: int) -> float:
        if self._row < 0:
            return self._own.part(limit, whole)
        if not self.divided:
            return whole
        table = self._rows.table
        mode = table.mode
        if mode == Mode.DIVIDED and table.floats[self._at + TOLD]:
            return min(table.floats[self._at + PART + limit], whole)
        if mode == Mode.OPEN:
            return whole * OPEN
        return 0.0 if mode == Mode.CLOSED else whole / table.replicas

    def even(self, whole: int) -> float:
        return whole / self._rows.table.replicas if self.divided else 0.0

    def elsewhere(self, limit: Limit) -> float:
        return self._rows.table.floats[self._at + ELSEWHERE + limit] if self.divided else 0.0

    def waits(self, limit: Limit, more: float) -> None:
        self._waiting[limit] += more

    def lacks(self, limit: Limit, whole: int, used: float, more: float) -> bool:
        table = self._rows.table
        if not self.divided or table.mode != Mode.DIVIDED:
            return False
        part, told = self.part(limit, whole), table.floats[self._at + TOLD]
        need = min(used + more, whole)
        lacks = need > part + ROUNDING or not told
        if not lacks and (need <= part / 2 or part >= whole):
            return False
        late = self._rows.clock.monotonic() - told >= TOLD_LATELY
        if not late and table.floats[self._at + ROOM + limit] < (need - part if lacks else 1.0):
            return False
        at = self._at + WANT + limit
        wanted = min(used + max(more, self._waiting[limit]) if lacks else 2 * need, whole)
        if table.floats[at] < wanted:
            table.floats[at] = wanted
            table.changed(METERS, self._row)
        return lacks


class SharedTally:
    """A row of accounts, or, where there is no room for one, an account in this process, with this worker's share."""

    __slots__ = ("_hash", "_name", "_own", "_row", "_rows", "_try_at", "money", "open", "tokens")

    def __init__(self, rows: Rows, name: str) -> None:
        self._rows = rows
        self._name = name
        self._hash = rows.table.hash(ACCOUNTS, name)
        self._row = -1
        self._try_at = 0.0
        self._use_own()
        self._find()

    def _use_own(self) -> None:
        self._own = OwnTally(self._name, self._rows.calendar, set(), Account(), 1 / self._rows.table.workers)
        self.open: Counter = self._own.open
        self.tokens: Counter = self._own.tokens
        self.money: Counter = self._own.money

    def look(self) -> None:
        rows = self._rows
        if self._row >= 0 and rows.table.hash_of(ACCOUNTS, self._row) == self._hash:
            rows.table.used(ACCOUNTS, self._row, rows.clock.monotonic())
        elif self._row >= 0 or (rows.clock.monotonic() >= self._try_at and not self.open.value):
            self._find()

    def read(self) -> Account:
        self.look()
        if self._row < 0:
            return self._own.read()
        return self._rows.today(self._row)

    def spent(self, per: str, unit: str) -> float:
        return self._own.spent(per, unit) if self._row < 0 else self._rows.spent(self._row, per, unit)

    def charge(self, prompt: int, cached: int, output: int, cost: float) -> None:
        if self._row < 0:
            self._own.charge(prompt, cached, output, cost)
        else:
            self._rows.charge(self._row, prompt, cached, output, cost)

    def beyond(self, budget: BudgetSettings, own: float) -> float:
        if self._row < 0:
            return self._own.beyond(budget, own)
        return self._rows.beyond(self._row, budget, own) if self._rows.divided else 0.0

    def elsewhere(self, budget: BudgetSettings) -> float:
        return self._rows.elsewhere(self._row, budget) if self._row >= 0 and self._rows.divided else 0.0

    def lacks(self, budget: BudgetSettings, own: float, in_flight: float) -> bool:
        if self._row < 0 or not self._rows.divided:
            return False
        return self._rows.lacks(self._row, budget, own, in_flight)

    def _find(self) -> None:
        rows, before = self._rows, self._row
        now = rows.clock.monotonic()
        self._row = row = rows.table.take(ACCOUNTS, self._name, rows.is_idle_of_header)
        if row >= 0:
            rows.table.used(ACCOUNTS, row, now)
            self.open, self.tokens, self.money = rows.counters(rows.table.counters(ACCOUNTS, row))
            return
        self._try_at = now + TRY_AGAIN
        rows.full("accounts")
        if before >= 0:
            self._use_own()
