"""A tenant's budget: what is spent of it, and what requests in flight may spend yet.

A request is let through while what is spent and what is in flight are together below the amount. So a budget is never
overspent by more than what was in flight: the last request that was let through, and what answers took beyond what was
expected of them.
"""

from __future__ import annotations

from gateway.tenants.accounts import Account, Calendar
from gateway.tenants.limit_settings import BudgetSettings


class Budget:
    """``settings``: what may be spent; it may be replaced. ``account``: what has been used. ``in_flight``: what
    requests under way are expected to spend, in the budget's unit."""

    __slots__ = ("_calendar", "account", "in_flight", "settings")

    def __init__(self, settings: BudgetSettings, account: Account, calendar: Calendar) -> None:
        self.settings = settings
        self.account = account
        self.in_flight = 0.0
        self._calendar = calendar

    @property
    def spent(self) -> float:
        """In the present period."""
        self._calendar.look()
        self.account.roll(self._calendar.day)
        return self.account.spent(self.settings.per, self.settings.unit)

    @property
    def exhausted(self) -> bool:
        """Whether no other request may begin."""
        return self.spent + self.in_flight >= self.settings.amount

    def ends_in(self, wall: float) -> float | None:
        """Seconds from ``wall`` until the next period begins; None: there is none."""
        end = self._calendar.ends(self.settings.per)
        return None if end is None else max(0.0, end - wall)
