"""What requests of one caller for one model are held to, found once."""

from __future__ import annotations

from typing import NamedTuple

from gateway.tenants.budgets import Budget
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import PriceSettings
from gateway.tenants.meters import Meter
from gateway.tenants.places import Tally
from gateway.tenants.settings import HEADER


class Scope(NamedTuple):
    """What a request of one caller for one model is held to, and charged to."""

    caller: Caller
    model: str
    meters: tuple[Meter, ...]
    budget: Budget | None
    price: PriceSettings | None
    tallies: tuple[Tally, ...]


def account_name(caller: Caller) -> str:
    """The name of its tenant's account: who only a header names must not spend what another one has."""
    return f"header:{caller.tenant.name}" if caller.label == HEADER else f"tenant:{caller.tenant.name}"
