"""What tenants and keys have used: requests, tokens by kind and money, of this day, this month and in all."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta

import msgspec

from gateway.framework import Clock


class Counts(msgspec.Struct):
    """What was used. ``prompt``, ``cached``, ``output``: tokens; the cached ones are among the prompt's. ``cost``:
    money in the currency of the prices; 0 for a model without a price."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    cost: float = 0.0

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.requests + other.requests,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.output + other.output,
            self.cost + other.cost,
        )

    def spent(self, unit: str) -> float:
        """In tokens, or in money: the unit of a budget."""
        return self.prompt + self.output if unit == "tokens" else self.cost


class Calendar:
    """Which day and month it is, in UTC, as ``2026-11-26`` and ``2026-11``. A clock that is set back begins no earlier
    day: what was used in it would count anew."""

    __slots__ = ("_clock", "_until", "day", "month")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.day = self.month = ""
        self._until = 0.0
        self.look()

    def look(self) -> None:
        """Before ``day`` and ``month`` are read."""
        now = self._clock.wall()
        if now >= self._until:
            date = datetime.fromtimestamp(now, UTC)
            self.day, self.month = f"{date:%Y-%m-%d}", f"{date:%Y-%m}"
            midnight = date.replace(hour=0, minute=0, second=0, microsecond=0)
            self._until = (midnight + timedelta(days=1)).timestamp()

    def ends(self, per: str) -> float | None:
        """When this day or month ends, in seconds since the epoch; None: ``total`` never does."""
        self.look()
        if per == "total":
            return None
        if per == "day":
            return self._until
        year, month = map(int, self.month.split("-"))
        first = datetime(year, month, 1, tzinfo=UTC)
        return (first + timedelta(days=monthrange(year, month)[1])).timestamp()


class Account(msgspec.Struct):
    """What one tenant or key has used. ``today``: on ``day``. ``month``: in that month before ``day``. ``before``: in
    all before that month. So an answer is counted once, and not for each period."""

    day: str = ""
    today: Counts = msgspec.field(default_factory=Counts)
    month: Counts = msgspec.field(default_factory=Counts)
    before: Counts = msgspec.field(default_factory=Counts)

    def roll(self, day: str) -> None:
        """It is ``day`` now. Nothing happens where that is not later than its own."""
        if day <= self.day:
            return
        self.month = self.month.plus(self.today)
        self.today = Counts()
        if day[:7] != self.day[:7]:
            self.before = self.before.plus(self.month)
            self.month = Counts()
        self.day = day

    def used(self, per: str) -> Counts:
        """Of the day, the month, or in ``total``."""
        if per == "day":
            return self.today
        month = self.month.plus(self.today)
        return month if per == "month" else self.before.plus(month)

    def spent(self, per: str, unit: str) -> float:
        """What a budget of that period and unit counts."""
        spent = self.today.spent(unit)
        if per != "day":
            spent += self.month.spent(unit)
        return spent + self.before.spent(unit) if per == "total" else spent

    def add(self, prompt: int, cached: int, output: int, cost: float) -> None:
        """A request has ended; of its answer, or what came of one."""
        today = self.today
        today.requests += 1
        today.prompt += prompt
        today.cached += cached
        today.output += output
        today.cost += cost
