"""Sends one leg and reads its answer until it is committed.

What a leg shows of its engine's health is reported to the fleet here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from gateway.api.body import Body, JsonBody
from gateway.api.headers import RANK_HEADER, Headers, to_engine
from gateway.api.settings import PassThroughSettings
from gateway.api.stream_usage import REFUSALS, UsageRemover, refuses
from gateway.core.clock import SystemClock
from gateway.core.log_limit import LogLimit, left_out
from gateway.fleet.engine import FleetEndpoint
from gateway.fleet.fleet import Fleet
from gateway.framework import Endpoint
from gateway.framework.request import DECODE
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import IncomingRequest
from gateway.proxy.serving.hooks import BeforeSend
from gateway.proxy.serving.stream_usage import StreamUsage
from gateway.proxy.upstream.commit import Committed, commit
from gateway.proxy.upstream.legs import HealthReport, Leg, LegFailed
from gateway.proxy.upstream.send import Upstream

log = logging.getLogger("kvgate.forward")


class Forwarder:
    """Makes legs of a request, and forwards them. Holds no state of any request."""

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        passing: PassThroughSettings,
        usage: StreamUsage,
        before_send: Sequence[BeforeSend] = (),
    ) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._passing = passing
        self._usage = usage
        self._before_send = before_send
        self._often = LogLimit(SystemClock())

    async def forward(
        self,
        attempt: Attempt,
        endpoint: Endpoint,
        body: Body,
        *,
        name: str = DECODE,
        head: float | None = None,
        total: float | None = None,
        until_output: bool = False,
    ) -> Committed:
        """Send ``body`` to ``endpoint`` as the leg of this ``name``, its kind. ``head``, ``total``: as in ``Leg``.
        ``until_output``: as for ``commit``.

        Raises LegFailed; the leg is over then.
        """
        call = attempt.call
        body, asks = await self.prepared(attempt, endpoint, body, name)
        sends, readable = asks or body, name != DECODE or asks is not None
        while True:
            leg = self.leg(call, endpoint, sends, readable=readable, sent_as=attempt.sent_as)
            if head is not None or total is not None:
                leg = replace(leg, head=head, total=total)
            attempt.sent(name, endpoint)
            try:
                answer = await self._upstream.send(leg)
                self._fleet.report_head(endpoint, answer.connect_seconds)
                committed = await commit(answer, call.route.kind, until_output=until_output)
            except LegFailed as failure:
                attempt.leg_ended(name, failure.result)
                self.failed(failure)
                raise
            if committed.events is None:
                self._fleet.report_complete(endpoint)
            if asks is None:
                return committed
            if sends is asks and answer.status in REFUSALS and refuses(committed.text):
                answer.abort()
                attempt.leg_ended(name, "engine_error")
                sends, readable = body, True
                continue
            if sends is not asks and answer.status not in REFUSALS:  # else it refused something of the client's own
                self._usage.refused(endpoint, "refuses stream_options.include_usage")
            elif sends is asks and committed.events is not None:
                if answer.encoding:  # what is compressed can only pass as it came
                    self._usage.refused(endpoint, "compresses its streams unasked")
                else:
                    committed.usage_remover = self._usage.remover(call, endpoint)
            return committed

    async def prepared(
        self, attempt: Attempt, endpoint: Endpoint, body: Body, name: str, *, ask: bool = True
    ) -> tuple[Body, JsonBody | None]:
        """What goes to ``endpoint`` for ``body`` as the leg of this ``name``; and the same with a request for the
        stream's usage, which the client did not make: None if there is no need of one. ``ask``: it would be read."""
        for hook in self._before_send:
            body = await hook.before_send(attempt, endpoint, body, name)
        if ask and attempt.call.request.stream and self._passing.ask_usage and name == DECODE:
            return body, self._usage.ask(attempt.call, endpoint, body)
        return body, None

    def usage_remover(self, attempt: Attempt, endpoint: Endpoint) -> UsageRemover:
        """Removes from a stream of ``endpoint`` the usage that only ``prepared`` has requested."""
        return self._usage.remover(attempt.call, endpoint)

    def usage_refused(self, endpoint: Endpoint, why: str) -> None:
        """Do not request it there again until the engine restarts."""
        self._usage.refused(endpoint, why)

    def failed(self, failure: LegFailed) -> None:
        """Report to the fleet what a failed leg, or an answer that broke after commit, shows of its engine."""
        health = failure.rule.health
        if health is HealthReport.OURS:
            # Each request fails so while descriptors are out.
            if (count := self._often.admit("exhausted")) is not None:
                log.error("no connection to an engine could be made: %s%s", failure.detail, left_out(count))
        elif health is HealthReport.REFUSED:
            self._fleet.report_refused(failure.endpoint)
        elif health is HealthReport.BROKEN:
            self._fleet.report_broken(failure.endpoint, str(failure.cause), failure.waited)

    def finished(self, endpoint: Endpoint) -> None:
        """Report to the fleet that a stream is complete."""
        self._fleet.report_complete(endpoint)

    def bare(self, headers: Headers, endpoint: Endpoint, path: str, request_id: str) -> Leg:
        """A request without a body on its way to ``endpoint``."""
        assert isinstance(endpoint, FleetEndpoint)
        passing = to_engine(headers, self._passing, api_key=endpoint.api_key)
        return Leg(endpoint, endpoint.engine.address, path, [*passing, ("x-request-id", request_id)], b"")

    def leg(
        self, incoming: IncomingRequest, endpoint: Endpoint, body: Body, *, readable: bool = True, sent_as: str = ""
    ) -> Leg:
        """``body`` on its way to ``endpoint``: its path, its headers, the model's name there. ``readable``: as for
        ``headers.forward``. ``sent_as``: its ``x-request-id``, where that is not the request's own."""
        assert isinstance(endpoint, FleetEndpoint)
        headers = to_engine(incoming.headers, self._passing, api_key=endpoint.api_key, readable=readable)
        headers.append(("content-type", body.content_type))
        headers.append(("x-request-id", sent_as or incoming.id))
        if endpoint.rank is not None:
            headers = [(name, value) for name, value in headers if name != RANK_HEADER]
            headers.append((RANK_HEADER, str(endpoint.rank)))
        name = incoming.request.adapter
        if name is None:
            name = self._fleet.served_name(endpoint, incoming.request.model)
        return Leg(endpoint, endpoint.engine.address, incoming.route.path, headers, body.encode(name))
