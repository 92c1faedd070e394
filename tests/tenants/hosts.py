"""Several gateways' gates on one server, in one process."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.errors import LimitReached
from gateway.sharing.settings import SharingSettings
from gateway.tenancy import limits_of
from gateway.tenants.divider import Divider
from gateway.tenants.gate import Gate, Grant
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import PriceSettings
from gateway.tenants.settings import TenantSettings
from gateway.tenants.shared_state import SharedState

PRICES = {"m": PriceSettings(1.0, 10.0)}


PATIENT = 5.0
"""Seconds that requests wait for parts, however busy the machine is."""


class Host:
    """One gateway's gate."""

    def __init__(self, settings: SharingSettings, state: SharedState | None = None) -> None:
        clock = SystemClock()
        state = state or limits_of(None, settings, clock)
        assert state is not None
        self.state = state
        self.gate = Gate(lambda: PRICES, clock, NULL_OBSERVER, state)
        self.divider = Divider(state, settings, clock, random.Random(1))
        self.divider.start()

    @property
    def mode(self) -> int:
        return self.state.table.mode

    async def close(self) -> None:
        await self.divider.close()
        self.state.close()

    async def admit(self, caller: Caller, tokens: int = 0) -> Grant | None:
        """As a request does."""
        await self.gate.room(caller, "m")
        try:
            grant = self.gate.admit(caller, "m", 0)
        except LimitReached:
            return None
        await grant.room(tokens, 0.0)
        return charged(grant, tokens)

    async def passes(self, caller: Caller, count: int, tokens: int = 0) -> list[Grant]:
        """Those of ``count`` at once that are let through."""
        return [grant for grant in await asyncio.gather(*[self.admit(caller, tokens) for _ in range(count)]) if grant]


def charged(grant: Grant, tokens: int) -> Grant | None:
    """The grant of a request whose prompt has so many tokens; None, with nothing left of it, where that is too many."""
    try:
        grant.exact(tokens, 0.0)
    except LimitReached:
        grant.settle(0, 0, 0)
        return None
    return grant


def tenant(name: str = "red", **settings: Any) -> Caller:
    return Caller.of(TenantSettings(name, **settings))
