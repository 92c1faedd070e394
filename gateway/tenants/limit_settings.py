"""Limits, budgets and prices of tenants and keys. They stand in plugins.yaml, in a watched file, or come by the admin
API, so that they are a file of their own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

MOST = 10**12
"""The largest rate, count or amount: above it a float does not hold every single token any more, over a long time."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The most that a tenant or a key may use. None: no limit.

    ``requests_per_minute``, ``tokens_per_minute``: rates; what is unused of one minute may be used at once.
    ``concurrent``: requests that have begun and not ended. ``tokens_in_flight``: prompt tokens and expected output of
    these. ``queued``: requests that wait in the queue of a model.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    tokens_in_flight: int | None = None
    queued: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 1 <= value <= MOST:
                raise ValueError(f"{field.name} must be at least 1, and at most {MOST}")


NO_LIMITS = LimitSettings()


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What may be used in a period, in UTC: a calendar day, a calendar month, or in all.

    ``amount``: tokens, prompt and output together; or money, in the currency of the prices.
    """

    amount: float
    unit: Literal["tokens", "money"] = "tokens"
    per: Literal["day", "month", "total"] = "month"

    def __post_init__(self) -> None:
        if not 0 < self.amount <= MOST:
            raise ValueError(f"amount must be above 0, and at most {MOST}")


@dataclass(frozen=True, slots=True)
class PriceSettings:
    """The price of a million tokens, in any currency. ``input``: of prompt tokens. ``output``: of generated ones.
    ``cached``: of prompt tokens that the engine took from its cache; None: the same as ``input``."""

    input: float
    output: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 <= value <= MOST:
                raise ValueError(f"{field.name} must be at least 0, and at most {MOST}")

    def of(self, prompt: int, cached: int, output: int) -> float:
        """What an answer costs. ``prompt``: tokens, the ``cached`` ones included."""
        at = self.input if self.cached is None else self.cached
        return ((prompt - cached) * self.input + cached * at + output * self.output) / 1e6
