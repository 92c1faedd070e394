"""Tenants that only a header names: as many as are in use, and never more than a fixed number.

Whoever sets the header can name a new tenant with each request. What is kept of tenants elsewhere (their places in
queues, their limits) is bounded by this number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gateway.framework import Clock
from gateway.tenants.identity import Caller
from gateway.tenants.settings import MAX_NAME

MOST = 1000
"""Tenants that are known at a time: each has some 2 KB here and in the queues and limits."""

IDLE = 600.0
"""Seconds without a request after which a tenant may be forgotten: longer than most pauses in a user's session."""


class HeaderTenants:
    """The tenants that are known, the one that is idle longest first. ``make``: makes the caller of a name."""

    def __init__(self, clock: Clock, make: Callable[[str], Caller], *, most: int = MOST, idle: float = IDLE) -> None:
        self._clock = clock
        self._make = make
        self._most = most
        self._idle = idle
        self._callers: OrderedDict[str, Caller] = OrderedDict()
        self._used: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def find(self, name: str) -> Caller | None:
        """The caller of ``name``, which is in use from now on; None: there is no room for one more, or the name is too
        long or has characters that cannot be shown. O(1), but for the forgetting of idle ones."""
        caller, now = self._callers.get(name), self._clock.monotonic()
        if caller is not None:
            self._callers.move_to_end(name)
        else:
            if len(name) > MAX_NAME or not name.isprintable():
                return None
            self._forget(now)
            if len(self._callers) >= self._most:
                return None
            caller = self._callers[name] = self._make(name)
        self._used[name] = now
        return caller

    def renew(self) -> None:
        """The configuration has changed: make each caller anew."""
        for name in self._callers:
            self._callers[name] = self._make(name)

    def _forget(self, now: float) -> None:
        while self._callers:
            name = next(iter(self._callers))
            if now - self._used[name] < self._idle:
                return
            del self._callers[name], self._used[name]
