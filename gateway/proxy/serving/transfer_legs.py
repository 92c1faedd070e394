"""The two legs of a hand-over, prefill on one engine and decode on another: sent in turn or at once, as the connector
has it, and ended where the KV will not come.

Rules: the decode leg gets the KV transfer parameters whole or not at all. Parameters that were sent once are spent,
since their blocks may belong to another request by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import closing
from typing import Any

from gateway.api.body import JsonBody
from gateway.api.usage import read_usage
from gateway.core.observer import Observer
from gateway.core.tasks import TaskSet
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock, Endpoint
from gateway.framework.request import DECODE, PREFILL
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.connectors import Connector, Pair, Transfer
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.handover_failures import (
    NOT_THE_CLIENTS,
    HandoverCause,
    HandoverFailed,
    of_decode,
    of_prefill,
)
from gateway.proxy.serving.prefill_result import PrefillResult
from gateway.proxy.serving.timeline import Event
from gateway.proxy.settings import TimeoutSettings
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import Cause, DeferredError, LegFailed

LOOK = 1.0
"""Seconds between two checks of the engines while the KV is fetched: the default interval of scrapes, which show their
state."""

SILENT = frozenset({"timeout", "connect"})
"""Reasons for which an engine is down although its process may still run. If the process is gone, the engine that
fetches from it notices that itself."""

FETCHED = 10.0
"""Seconds after which a fetch counts as done if the prefill engine was healthy meanwhile: ten times what a fetch takes.
After that an unstreamed answer may be half written, and is not thrown away."""


class TransferLegs:
    """Sends both legs of a hand-over. Holds no state of any request: an ``Attempt`` does. ``running``: the legs that
    are under way, of whatever configuration."""

    def __init__(
        self,
        *,
        forwarder: Forwarder,
        fleet: Fleet,
        timeouts: TimeoutSettings,
        clock: Clock,
        observer: Observer,
        running: TaskSet,
    ) -> None:
        self._forwarder = forwarder
        self._fleet = fleet
        self._timeouts = timeouts
        self._clock = clock
        self._observer = observer
        self._running = running

    async def send(self, connector: Connector, attempt: Attempt, prefill: Endpoint, body: JsonBody) -> Committed:
        """The decode leg's answer, or the prefill leg's, where that is a refusal for the client.

        Raises HandoverFailed where the decode endpoint may still compute the prompt; LegFailed of the decode leg.
        """
        with self._fleet.lending(prefill):
            if connector.at_once:
                return await self._at_once(connector, attempt, prefill, body)
            return await self._in_turn(connector, attempt, prefill, body)

    async def _in_turn(self, connector: Connector, attempt: Attempt, prefill: Endpoint, body: JsonBody) -> Committed:
        prefill_result = attempt.prefill_result
        if prefill_result is None:
            transfer = await connector.open(self._pair(attempt, prefill))
            attempt.timeline.happened(Event.PREFILL_SENT)
            pauses = self._fleet.pauses
            with pauses.watching():
                lost = pauses.lost()
                try:
                    answered = await self._prefill(attempt, prefill, transfer.prefill(body), alone=True)
                except HandoverFailed:
                    attempt.timeline.happened(Event.PREFILL_ENDED)
                    raise
                # If this process was stopped meanwhile, the engine's lease may have begun before its answer was read.
                at = pauses.now() - (pauses.lost() - lost)
            attempt.timeline.happened(Event.PREFILL_ENDED)
            if answered.status != 200:
                return answered
            prefill_result = attempt.prefill_result = PrefillResult(prefill, transfer, answered.data, at)
        require_up(attempt.plan.decode)
        leg = prefill_result.transfer.decode(body, prefill_result.answer)
        if (lease := prefill_result.transfer.lease) is not None:
            if self._fleet.pauses.now() - prefill_result.at > lease:
                raise HandoverFailed(HandoverCause.EXPIRED, f"the prefill ended more than {lease:g} s ago")
            if prefill.engine.down_reason:
                raise HandoverFailed(HandoverCause.PREFILL_DOWN, prefill.engine.down_reason)
        try:
            if lease is None:
                committed = await self._decode(attempt, attempt.plan.decode, leg)
            else:
                fetch = self._start(self._decode(attempt, attempt.plan.decode, leg), attempt)
                committed = await self._watched(fetch, attempt, prefill_result.transfer)
        except LegFailed as failure:
            if failure.cause.sent:
                attempt.prefill_result = None
            raise
        attempt.prefill_result = None
        return committed

    async def _at_once(self, connector: Connector, attempt: Attempt, prefill: Endpoint, body: JsonBody) -> Committed:
        transfer = await connector.open(self._pair(attempt, prefill))
        # The decode leg first: if its connection is refused at once, no engine computes in vain.
        second = self._start(self._decode(attempt, attempt.plan.decode, transfer.decode(body, b"")), attempt)
        first = self._start(self._prefill(attempt, prefill, transfer.prefill(body), alone=False), attempt)
        committed: Committed | None = None
        try:
            await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
            if not second.done() and (answered := first.result()).status != 200:
                return answered
            committed = await self._watched(second, attempt, transfer)
            return committed
        finally:
            # Each leg waits for the other, so without an answer both end. But with a committed answer the prefill leg
            # goes on: it may still be handing its KV over.
            if committed is not None and not first.done():
                committed.accompany(first)
            else:
                await _end(first, second, keep=committed)
            if committed is None:
                attempt.leg_ended(DECODE, "cancelled")

    async def _prefill(self, attempt: Attempt, endpoint: Endpoint, body: JsonBody, *, alone: bool) -> Committed:
        """The prefill leg's whole answer: a 200, or a 4xx, which is the client's. Raises HandoverFailed.

        ``alone``: nothing but the prompt's computing is in its time.
        """
        began = self._clock.monotonic()
        try:
            limit = self._timeouts.prefill
            answered = await self._forwarder.forward(attempt, endpoint, body, name=PREFILL, head=limit, total=limit)
        except LegFailed as failure:
            attempt.prefilled(failure.result)
            raise HandoverFailed(of_prefill(failure.cause), failure.detail) from failure
        with closing(answered):
            if 400 <= answered.status <= 499 and answered.status not in NOT_THE_CLIENTS:
                attempt.prefilled("engine_error")
                return answered
            if answered.status != 200 or answered.events is not None:
                attempt.prefilled("engine_error")
                if answered.status == 200:
                    raise HandoverFailed(HandoverCause.PREFILL_MALFORMED, "a stream, where none was asked for")
                raise HandoverFailed(HandoverCause.PREFILL_STATUS, f"HTTP {answered.status}") from _error_of(answered)
            seconds = self._clock.monotonic() - began
            attempt.prefilled(
                "ok", usage=read_usage(answered.data, attempt.call.route.kind), seconds=seconds if alone else None
            )
            return answered

    async def _decode(self, attempt: Attempt, endpoint: Endpoint, body: JsonBody) -> Committed:
        """The decode leg that fetches its KV. Raises LegFailed, or HandoverFailed where it may be cured without."""
        began = self._clock.monotonic()
        # The head of an unstreamed answer comes after its last token: only a stream shows in time that it is stuck.
        head = min(self._timeouts.handover, self._timeouts.head) if attempt.call.request.stream else None
        try:
            committed = await self._forwarder.forward(attempt, endpoint, body, head=head, until_output=True)
        except LegFailed as failure:
            if (cause := of_decode(failure, stream=attempt.call.request.stream)) is not None:
                raise HandoverFailed(cause, failure.detail) from failure
            raise
        if committed.failed:
            attempt.leg_ended(DECODE, "engine_error")
            committed.close()
            raise HandoverFailed(HandoverCause.DECODE_ERROR, f"HTTP {committed.status}") from _error_of(committed)
        if committed.status == 200:
            self._observer.handed_over(attempt.model_name, self._clock.monotonic() - began)
        return committed

    async def _watched(self, leg: asyncio.Task[Committed], attempt: Attempt, transfer: Transfer) -> Committed:
        """A decode leg that fetches, ended where its KV will not come: the prefill engine stands still (or is gone,
        where no decode engine notices that), and the decode engine, asked after that was seen, is fetching still. vLLM
        waits for such an engine without an end.

        Raises as ``_decode``.
        """
        prefill, decode = attempt.plan.prefill, attempt.plan.decode
        assert prefill is not None
        began = self._clock.monotonic()
        committed: Committed | None = None
        down_at: float | None = None
        try:
            while not (await asyncio.wait((leg,), timeout=LOOK))[0]:
                down = prefill.engine.down_reason and (
                    not transfer.notices_death or prefill.engine.down_reason in SILENT
                )
                if not down:
                    down_at = None
                elif down_at is None:
                    down_at = self._clock.monotonic()
                # The fetch that the decode engine reports may be another request's. So an unstreamed answer, which may
                # be half written, is ended only if its fetch cannot be done yet.
                elif (
                    (attempt.call.request.stream or began > (prefill.metrics.at or 0.0) - FETCHED)
                    and (decode.metrics.at or 0.0) > down_at
                    and decode.metrics.fetches
                ):
                    raise HandoverFailed(
                        HandoverCause.PREFILL_DOWN, f"{prefill.engine.down_reason}, while its KV was fetched"
                    )
            committed = leg.result()
            return committed
        finally:
            if committed is None:
                await _end(leg, keep=None)

    def _start(self, leg: Coroutine[Any, Any, Committed], attempt: Attempt) -> asyncio.Task[Committed]:
        return self._running.start(leg, name=f"leg of {attempt.call.id}", awaited=True)

    def _pair(self, attempt: Attempt, prefill: Endpoint) -> Pair:
        return Pair(attempt.call.route.kind, prefill, attempt.plan.decode, self._fleet.bootstrap_port(prefill))


async def _end(*legs: asyncio.Task[Committed], keep: Committed | None) -> None:
    """Cancel the legs that still run, wait for their end, and close what they answered all the same, but ``keep``."""
    for leg in legs:
        leg.cancel()
    for result in await asyncio.gather(*legs, return_exceptions=True):
        if isinstance(result, Committed) and result is not keep:
            result.answer.abort()


def require_up(endpoint: Endpoint) -> None:
    """Raises LegFailed if the engine went down since it was chosen: the request is placed again."""
    if not endpoint.engine.up:
        raise LegFailed(Cause.REFUSED, endpoint, f"it is down: {endpoint.engine.down_reason}")


def _error_of(answered: Committed) -> LegFailed:
    """An engine's error response, or its stream with nothing but an error, as the failure of its leg."""
    held = DeferredError(answered.status, answered.headers, answered.data)
    return LegFailed(Cause.STATUS, answered.answer.endpoint, f"HTTP {answered.status}", held)
