"""What is booked for a request, on which endpoints, and what was known when it was."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.fleet.cost import FittedCost
from gateway.fleet.fleet import Fleet
from gateway.fleet.ledger import Reservation
from gateway.framework import GENERATES, Endpoint, Plan, Request
from gateway.proxy.connectors import Transfer


@dataclass(slots=True, eq=False)
class Booking:
    """One leg's work on its endpoint. ``at``: when the engine could begin with the prompt, as far as we know.

    ``expected_hit``, ``new_tokens``: of the prompt, held there and to be computed there. ``running``, ``kv_tokens``:
    what was there when it was booked.
    """

    endpoint: Endpoint
    reservation: Reservation
    cost: FittedCost
    at: float
    expected_hit: int
    new_tokens: int
    running: float
    kv_tokens: float

    @classmethod
    def make(cls, request: Request, endpoint: Endpoint, fleet: Fleet, now: float) -> Booking:
        """Book the prompt's place; ``computes`` books its computing. Both without an await after the load was read."""
        load = endpoint.load
        return cls(
            endpoint=endpoint,
            cost=fleet.cost(endpoint),
            at=now,
            expected_hit=request.matches[endpoint.slot].expected_hit,
            new_tokens=request.new_tokens(endpoint) if request.kind in GENERATES else request.prompt_tokens,
            running=load.requests + load.foreign_requests,
            kv_tokens=load.kv_tokens + load.foreign_kv_tokens,
            reservation=fleet.ledger(endpoint).reserve(prefill_tokens=0, kv_tokens=request.prompt_tokens),
        )

    def computes(self, now: float, *, told: bool) -> None:
        """The engine computes the prompt, from ``now`` on. ``told``: we shall hear when that is done (a stream)."""
        self.at = now
        predicted = self.cost.ttft(self.endpoint.load, self.new_tokens, self.expected_hit)
        self.reservation.computes(self.new_tokens, expires_prefill_at=None if told else now + predicted)

    def learn_prefill(self, seconds: float) -> None:
        """The prompt was computed within ``seconds``: served in order, so what was queued ahead of it is in them."""
        self.cost.learn_prefill(self.reservation.ahead + self.new_tokens, self.expected_hit, seconds)


@dataclass(slots=True, eq=False)
class Placement:
    """A request on its endpoints. ``prefill``: of a separate prefill leg that has not ended.

    ``split``: the decode leg fetches the prompt's KV, and does not compute it.
    """

    plan: Plan
    decode: Booking
    prefill: Booking | None = None
    split: bool = False


@dataclass(frozen=True, slots=True)
class Parcel:
    """A prefill's answer that no engine has used yet. ``at``: Clock.monotonic() of its end."""

    prefill: Endpoint
    transfer: Transfer
    answer: bytes
    at: float
