"""A tenant's budget: what is spent of it, and what requests in flight may spend yet.

A request is let through while what is spent and what is in flight are together below the amount. So a budget is never
overspent by more than what was in flight: the last request that was let through, and what answers took beyond what was
expected of them.
"""

from __future__ import annotations

from gateway.tenants.accounts import Calendar
from gateway.tenants.limit_settings import BudgetSettings
from gateway.tenants.places import Counter, Tally

MONEY = 10**9
"""Parts of the currency in which money in flight is counted: a token of a cheap model costs some ten of them."""

MOST_MONEY = 10**15
"""The most that one request is expected to spend, in these parts, a million of any currency: sums of it fit 64 bits."""


class Budget:
    """``settings``: what may be spent; it may be replaced. ``tally``: what has been used, and is in flight."""

    __slots__ = ("_calendar", "settings", "tally")

    def __init__(self, settings: BudgetSettings, tally: Tally, calendar: Calendar) -> None:
        self.settings = settings
        self.tally = tally
        self._calendar = calendar

    @property
    def spent(self) -> float:
        """In the present period, by all hosts that share it, as far as is known here."""
        return self.tally.spent(self.settings.per, self.settings.unit) + self.tally.elsewhere(self.settings)

    @property
    def in_flight(self) -> float:
        """What requests under way are expected to spend, in the budget's unit."""
        tally = self.tally
        return float(tally.tokens.value) if self.settings.unit == "tokens" else tally.money.value / MONEY

    @property
    def exhausted(self) -> bool:
        """Whether no other request may begin."""
        own = self.tally.spent(self.settings.per, self.settings.unit)
        return own + self.tally.beyond(self.settings, own) + self.in_flight >= self.settings.amount

    def lacks(self) -> bool:
        """Whether another request would be refused only since other hosts have a part that they may not need. They are
        asked for it."""
        own = self.tally.spent(self.settings.per, self.settings.unit)
        return self.tally.lacks(self.settings, own, self.in_flight)

    def hold(self, tokens: int, cost: float) -> tuple[Counter, int]:
        """A request is under way that is expected to use so much. Returns what is to be taken from which counter at its
        end."""
        if self.settings.unit == "tokens":
            held = self.tally.tokens, tokens
        else:
            held = self.tally.money, min(round(cost * MONEY), MOST_MONEY)
        held[0].add(held[1])
        return held

    def ends_in(self, wall: float) -> float | None:
        """Seconds from ``wall`` until the next period begins; None: there is none."""
        end = self._calendar.ends(self.settings.per)
        return None if end is None else max(0.0, end - wall)
