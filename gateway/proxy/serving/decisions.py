"""The last decisions, for operators who ask why a request went where it went, with what became of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.core.observer import Observer, Settled
from gateway.errors import GatewayError
from gateway.fleet.load.booking import Booking
from gateway.framework import Clock, Plan, Request
from gateway.framework.match import Source
from gateway.placement.decision import Decision
from gateway.scheduling.trace import Rosters, Trace

COUNT = 1000
"""Decisions: some seconds of a busy gateway, and hours of a quiet one."""

BYTES = 16 * 1024 * 1024
"""Of all decisions together: a thousand of them over a hundred endpoints, each of which holds something of the prompt,
take about that."""

OUTCOME = (
    *("outcome", "status", "duration", "queue_wait", "overhead", "ttft", "prompt_tokens", "reported_prompt_tokens"),
    *("cached_tokens", "output_tokens", "attempts", "prefill_time", "fallback", "slo", "error"),
)
"""Of ``Settled``: what became of a request. Its times are from the request's arrival."""


class Booked(msgspec.Struct, frozen=True):
    """What was known of the endpoint that was to compute the prompt, when it was booked there; see ``Booking``.

    ``source``: of what the endpoint holds of the prompt. ``ahead``: prefill tokens queued there before. ``ttft``:
    seconds to the first token, as predicted; None: the prompt had been computed before.
    """

    endpoint: str
    at: float
    expected_hit: int
    source: Source
    new_tokens: int
    ahead: int
    running: float
    kv_tokens: float
    ttft: float | None


class DecisionRecord(Decision, eq=False):
    """A decision, and what became of it, filled in as it is known: one object, since each request makes one.

    ``at``: Clock.monotonic(); ``seconds``: that it took, with its booking. ``attempt``: 1 for a request's first.
    ``booked``: where the prompt is computed. ``agrees``: the prompt is exact, and the engine that answers makes its ids
    as we do. ``result``: how the attempt ended. ``cached_tokens``: of the prompt, as its engine reported.
    ``first_output_at``: Clock.monotonic() of a stream's first token; None: none was seen to come. ``settled``: what
    became of the request, of its last attempt. ``waited``: seconds in its model's queue; ``waited_for``: the endpoint
    and which of its bounds was the obstacle, last; empty: it did not wait.
    """

    at: float = 0.0
    seconds: float = 0.0
    attempt: int = 1
    booked: Booked | None = None
    agrees: bool = False
    result: str | None = None
    cached_tokens: int | None = None
    first_output_at: float | None = None
    settled: Settled | None = None
    waited: float = 0.0
    waited_for: str = ""

    def book(self, booking: Booking) -> None:
        """The prompt is computed there, and no longer where it was to be before."""
        self.booked = Booked(
            booking.endpoint.name,
            booking.at,
            booking.expected_hit,
            self.matches[booking.endpoint.slot].source,
            booking.new_tokens,
            booking.ahead,
            booking.running,
            booking.kv_tokens,
            booking.predicted,
        )

    def to_json_at(self, now: float, wall: float) -> dict[str, Any]:
        """With what became of it. ``now``, ``wall``: of the clock, both."""
        return {
            "at": wall - (now - self.at),
            "request_id": self.request_id,
            "attempt": self.attempt,
            "seconds": self.seconds,
            "waited": self.waited,
            "waited_for": self.waited_for or None,
            **self.to_json(),
            "predicted": self._predicted(),
            "result": self.result,
            "real": {"cached_tokens": self.cached_tokens, "ttft": self._ttft()},
            "outcome": None if self.settled is None else {name: getattr(self.settled, name) for name in OUTCOME},
        }

    def _ttft(self) -> float | None:
        """Seconds from the booking."""
        return None if self.first_output_at is None or self.booked is None else self.first_output_at - self.booked.at

    def _predicted(self) -> dict[str, Any] | None:
        booked = self.booked
        if booked is None:
            return None
        return {
            "endpoint": booked.endpoint,
            "cached_tokens": booked.expected_hit,
            "new_tokens": booked.new_tokens,
            "ttft": booked.ttft,
            "prefill_tokens_ahead": booked.ahead,
            "requests_beside": booked.running,
            "kv_tokens_beside": booked.kv_tokens,
        }


class Decisions(Observer):
    """The last ones of all models, whatever configuration they were made by. Bounded by count and by bytes.

    ``rosters``: of their candidates.
    """

    def __init__(self, clock: Clock, count: int = COUNT, size: int = BYTES) -> None:
        self.clock = clock
        self.rosters: Rosters = {}
        self._count = count
        self._most = size
        self._size = 0
        self._ring: deque[DecisionRecord] = deque()

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[DecisionRecord]:
        """Newest first."""
        return reversed(self._ring)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self._size

    def keep(
        self, request: Request, made: Plan | GatewayError, trace: Trace | None, attempt: int, began: float
    ) -> DecisionRecord:
        """Keep what was decided, which ``began`` then (Clock.monotonic()) and is booked by now. ``trace``: what it was
        made of; None: nothing was looked at."""
        ring, at = self._ring, self.clock.monotonic()
        kept = DecisionRecord.of(request, made, () if trace is None else trace.runs)
        kept.at, kept.seconds, kept.attempt = at, at - began, attempt
        ring.append(kept)
        self._size += kept.size
        while self._size > self._most or len(ring) > self._count:
            self._size -= ring.popleft().size
        return kept

    def endpoint_dropped(self, endpoint: str) -> None:
        self.rosters.clear()
