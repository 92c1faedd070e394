"""Sends one leg, and reads its answer until it may be the client's.

What an engine shows of its health by that is told to the fleet here, whichever leg it was.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.api.body import Body
from gateway.api.headers import forward
from gateway.api.settings import PassSettings
from gateway.fleet.fleet import Fleet
from gateway.framework import Endpoint
from gateway.proxy.commit import Committed, commit
from gateway.proxy.exchange import Exchange
from gateway.proxy.legs import Cause, Leg, LegFailed
from gateway.proxy.upstream import Upstream

RANK_HEADER = "x-data-parallel-rank"
"""What pins a request to one data-parallel rank of a vLLM server."""


class Forwarder:
    """Makes legs of a request, and forwards them. Holds no state of any request."""

    def __init__(self, fleet: Fleet, upstream: Upstream, passing: PassSettings) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._passing = passing

    async def forward(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        body: Body,
        *,
        name: str = "decode",
        head: float | None = None,
        total: float | None = None,
        until_output: bool = False,
    ) -> Committed:
        """Send ``body`` to ``endpoint`` as the leg of this ``name``. ``head``, ``total``: as in ``Leg``.
        ``until_output``: as for ``commit``.

        Raises LegFailed; the leg is over then.
        """
        leg = self.leg(exchange, endpoint, body)
        if head is not None or total is not None:
            leg = replace(leg, head=head, total=total)
        exchange.sent(name, endpoint)
        try:
            answer = await self._upstream.send(leg)
            self._fleet.answered(endpoint, answer.connect_seconds)
            return await commit(answer, exchange.route.kind, until_output=until_output)
        except LegFailed as failure:
            exchange.ended(name, failure.result)
            self.failed(failure)
            raise

    def failed(self, failure: LegFailed) -> None:
        """Tell the fleet what a leg, or an answer that broke after commit, shows of its engine."""
        if failure.cause in (Cause.REFUSED, Cause.CONNECT_TIMEOUT):
            self._fleet.refused(failure.endpoint)
        elif failure.cause is not Cause.STATUS:
            self._fleet.broke(failure.endpoint, str(failure.cause))

    def leg(self, exchange: Exchange, endpoint: Endpoint, body: Body) -> Leg:
        """``body`` on its way to ``endpoint``: its path, its headers, the model's name there."""
        assert exchange.request is not None
        headers = forward(exchange.headers, self._passing, api_key=self._fleet.api_key(endpoint))
        headers.append(("content-type", body.content_type))
        headers.append(("x-request-id", exchange.sent_as or exchange.id))
        if endpoint.rank is not None:
            headers = [(name, value) for name, value in headers if name != RANK_HEADER]
            headers.append((RANK_HEADER, str(endpoint.rank)))
        name = self._fleet.served_name(endpoint, exchange.request.model, exchange.request.adapter)
        return Leg(endpoint, exchange.route.path, headers, body.encode(name))
