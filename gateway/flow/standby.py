"""Requests of a model that has no usable endpoint: they stand by until there is one, for a limited time.

So a model may be scaled to zero: what waits is seen in the metrics, an engine is started for it, and serves it.

Rules: who comes while others with the same needs stand by stands behind them. The first usable endpoint releases all,
in the order in which they came, some in each turn of the loop; each is then placed on what is true at that moment. An
adapter's request waits for an engine that has the adapter loaded, and keeps back no other one by that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from gateway.errors import NO_ENDPOINT_RETRY, NoEndpoint
from gateway.flow.settings import FlowSettings
from gateway.framework import Clock, Request

AT_ONCE = 16
"""Requests that are released in one turn of the loop: to place and send one takes some tenths of a millisecond, in
which no stream goes on."""


class Needs(NamedTuple):
    """What makes an endpoint usable for a request. ``adapter``: its engine has loaded it; None: none is needed.
    ``bound``: it may be draining."""

    adapter: str | None = None
    bound: bool = False


NOTHING = Needs()


def needs_of(request: Request) -> Needs:
    return Needs(request.adapter, request.bound)


class _Standing:
    """One that stands by. ``turn``: done when it is released, or its time is over."""

    __slots__ = ("needs", "turn")

    def __init__(self, needs: Needs, turn: asyncio.Future[None]) -> None:
        self.needs = needs
        self.turn = turn


class Standby:
    """Of one model. ``usable``: whether it has an endpoint for a request with these needs. ``why``: why it has none, in
    words. ``begins``: called when one begins to stand by, and when endpoints have changed and nobody is released. All
    three are set once there is a fleet."""

    def __init__(self, settings: FlowSettings, model: str, clock: Clock) -> None:
        self.usable: Callable[[Needs], bool] = lambda needs: True
        self.why: Callable[[], str] = str
        self.begins: Callable[[], None] = lambda: None
        self._settings = settings
        self._model = model
        self._clock = clock
        self._standing: dict[_Standing, None] = {}
        self._counts: Counter[Needs] = Counter()  # how many stand by with these needs; no entry: none
        self._soon: asyncio.Handle | None = None

    @property
    def holds(self) -> bool:
        """Whether requests may stand by at all."""
        return bool(self._settings.no_endpoint_timeout)

    @property
    def waiting(self) -> int:
        """Requests that stand by."""
        return len(self._standing)

    def waits_in_vain(self) -> bool:
        """Whether requests stand by, and no endpoint is usable for one without needs of its own."""
        return bool(self._standing) and not self.usable(NOTHING)

    def set_limits(self, settings: FlowSettings) -> None:
        """For those that come from now on."""
        self._settings = settings

    def passes(self, request: Request) -> bool:
        """Whether it has to wait for nothing here."""
        if not self._settings.no_endpoint_timeout:
            return True
        needs = needs_of(request)
        return needs not in self._counts and self.usable(needs)

    def look(self) -> None:
        """Endpoints have changed: release whom that lets go, soon."""
        if self._standing and self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._release)

    async def wait(self, request: Request, timeout: float) -> None:
        """Stand by until an endpoint is usable. ``timeout``: seconds from its arrival, by its client's own wish.

        Raises NoEndpoint after that or ``no_endpoint_timeout``, or at once where ``max_queue`` stand by. Cancellation
        leaves nothing behind.
        """
        if len(self._standing) >= self._settings.max_queue:
            raise self._none(f"{len(self._standing)} requests wait for one already")
        loop = asyncio.get_running_loop()
        needs = needs_of(request)
        standing = _Standing(needs, loop.create_future())
        self._standing[standing] = None
        self._counts[needs] += 1
        until = request.arrived + min(timeout, self._settings.no_endpoint_timeout or 0.0)
        timer = loop.call_later(max(0.0, until - self._clock.monotonic()), self._time_out, standing)
        try:
            if self.usable(needs):
                self.look()
            else:
                self.begins()
            await standing.turn
        finally:
            timer.cancel()
            self._leave(standing)

    def _release(self) -> None:
        self._soon = None
        usable: dict[Needs, bool] = {}
        for one in self._standing:
            if one.needs not in usable:
                usable[one.needs] = self.usable(one.needs)
        released = [*islice((one for one in self._standing if usable[one.needs] and not one.turn.done()), AT_ONCE)]
        for one in released:
            self._leave(one)
            one.turn.set_result(None)
        if released:
            self.look()
        elif self._standing:
            self.begins()  # the engine that sleeps may be known only now

    def _leave(self, one: _Standing) -> None:
        if one in self._standing:
            del self._standing[one]
            self._counts[one.needs] -= 1
            if not self._counts[one.needs]:
                del self._counts[one.needs]

    def _time_out(self, one: _Standing) -> None:
        if not one.turn.done():
            waited = "in time" if self.holds else "any more"
            one.turn.set_exception(self._none(f"none came {waited}"))

    def _none(self, what: str) -> NoEndpoint:
        why = f"No endpoint of model {self._model!r} may be used, and {what}: {self.why()}."
        return NoEndpoint(why, retry_after=NO_ENDPOINT_RETRY)
