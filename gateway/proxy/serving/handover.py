"""Plans of several legs, by who carries them out. Here are hand-overs, prefill on one engine and decode on another: if
anything fails on the way, the decode endpoint computes the prompt itself, unless the plan is strict.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from gateway.api.body import Body, JsonBody
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.observer import Observer
from gateway.core.tasks import TaskSet
from gateway.errors import PluginFailed
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock
from gateway.framework.request import DECODE, PREFILL
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.bootstrap import Bootstrap, Unreachable
from gateway.proxy.serving.connectors import Connector, connectors
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.handover_failures import HandoverCause, HandoverFailed
from gateway.proxy.serving.transfer_legs import TransferLegs, require_up
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import LegFailed

log = logging.getLogger("kvgate.handover")

IDS = 100_000
"""Hand-overs whose ids are remembered: some minutes of them, longer than any engine keeps a request's KV."""


@dataclass(frozen=True, slots=True)
class HandoverState:
    """What outlives a configuration: made once, and used by the ``Handover`` of each.

    ``ids``: of the last hand-overs, the oldest first. ``legs``: those that are under way.
    """

    ids: dict[str, None] = field(default_factory=dict)
    legs: TaskSet = field(default_factory=TaskSet)
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    async def close(self) -> None:
        """End the legs that no answer waits for any more."""
        await self.legs.close()
        await self.bootstrap.close()


class Handover:
    """Carries plans of several legs out. Holds no state of any request: an ``Attempt`` does.

    ``carriers``: by the kinds of a plan's legs, in their order, who sends them (by ``forwarder``) and returns the
    decode leg's committed answer. A carrier says of each other leg when it has ended (``Attempt.done``), and raises as
    ``commit``. ``fleet``: keeps an endpoint up while a leg's result is to be fetched from it (``lending``).
    """

    def __init__(
        self,
        *,
        forwarder: Forwarder,
        fleet: Fleet,
        timeouts: TimeoutSettings,
        clock: Clock,
        observer: Observer,
        random: Random,
        state: HandoverState,
    ) -> None:
        self.forwarder = forwarder
        self.fleet = fleet
        self._timeouts = timeouts
        self._random = random
        self._legs = TransferLegs(
            forwarder=forwarder, fleet=fleet, timeouts=timeouts, clock=clock, observer=observer, running=state.legs
        )
        self._often = LogLimit(clock)
        self._state = state
        self._connectors: Mapping[str, Connector] = connectors(self._fetch, clock.monotonic, random)

    async def commit(self, attempt: Attempt) -> Committed:
        """Send the legs of the plan. Raises LegFailed of the decode leg; GatewayError where a strict plan fails, or
        nobody carries such a plan."""
        carrier = self.carriers.get(attempt.plan.kinds)
        if carrier is None:
            handler, kinds = attempt.call.runtime.model.handler, ", ".join(attempt.plan.kinds)
            raise PluginFailed(f"the handler {handler!r} planned the legs {kinds}: the gateway has no carrier for them")
        return await carrier(self, attempt)

    async def hand_over(self, attempt: Attempt, body: Body) -> Committed:
        """Send ``body`` as a prefill leg and a decode leg. Raises as ``commit``."""
        plan = attempt.plan
        assert plan.prefill is not None
        assert isinstance(body, JsonBody)
        connector = self._connectors.get(plan.connector)
        if connector is None:
            raise PluginFailed(f"the handler planned the connector {plan.connector!r}, which there is not")
        if attempt.prefill_result is None:
            attempt.sent_as = self._unused(attempt.call.id)
        try:
            if plan.prefill.engine.spared and connector.decode_can_compute and not plan.strict:
                # Its engine is used although it is not healthy: the decode endpoint computes the prompt sooner.
                raise HandoverFailed(HandoverCause.PREFILL_DOWN, plan.prefill.engine.down_reason)
            return await self._legs.send(connector, attempt, plan.prefill, body)
        except HandoverFailed as failure:
            names = plan.prefill.name, plan.decode.name
            if (count := self._often.admit(*names, failure.cause)) is not None:
                text = "request %s: no hand-over from %s to %s: %s%s"
                log.info(text, attempt.call.id, *names, failure, left_out(count))
            if plan.strict:
                raise failure.error() from failure
            leg = failure.__cause__
            if not connector.decode_can_compute:
                # Another pair of engines may succeed.
                raise (leg if isinstance(leg, LegFailed) else failure.error()) from failure
            if isinstance(leg, LegFailed):
                attempt.retries.count_deaths(leg)
            attempt.falls_back(failure.cause)
        require_up(plan.decode)
        return await self.forwarder.forward(attempt, plan.decode, body)

    carriers: ClassVar[dict[tuple[str, ...], Callable[[Handover, Attempt], Awaitable[Committed]]]] = {
        (PREFILL, DECODE): lambda handover, attempt: handover.hand_over(attempt, attempt.call.body)
    }

    def _unused(self, name: str) -> str:
        """An id under which no hand-over was made lately: engines that push KV find a request's by its id, and clients
        give several requests the same."""
        ids = self._state.ids
        if name in ids:
            name = f"{name}-{self._random.getrandbits(64):016x}"
        ids[name] = None
        if len(ids) > IDS:
            del ids[next(iter(ids))]
        return name

    async def _fetch(self, url: str) -> bytes:
        try:
            return await self._state.bootstrap.ask(url, self._timeouts.connect)
        except Unreachable as error:
            raise HandoverFailed(HandoverCause.BOOTSTRAP, str(error)) from error
