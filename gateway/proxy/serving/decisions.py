"""The last decisions, for operators who ask why a request went where it went, with what became of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.core.observer import Observer, Settled
from gateway.fleet.load.booking import Booking
from gateway.framework import Clock, Endpoint, Plan, Request
from gateway.placement.decision import Decision
from gateway.scheduling.trace import Roster, Trace

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

    ``ahead``: prefill tokens queued there before. ``ttft``: seconds to the first token, as predicted; None: the prompt
    had been computed before.
    """

    endpoint: str
    at: float
    expected_hit: int
    new_tokens: int
    ahead: int
    running: float
    kv_tokens: float
    ttft: float | None


class DecisionRecord(msgspec.Struct, eq=False):
    """A decision, and what became of it, filled in as it is known.

    ``booked``: where the prompt is computed. ``result``: how the attempt ended. ``cached_tokens``: of the prompt, as
    its engine reported. ``first_output_at``: Clock.monotonic() of a stream's first token; None: none was seen to come.
    ``settled``: what became of the request, of its last attempt.
    """

    decision: Decision
    booked: Booked | None = None
    result: str | None = None
    cached_tokens: int | None = None
    first_output_at: float | None = None
    settled: Settled | None = None

    def book(self, booking: Booking) -> None:
        """The prompt is computed there, and no longer where it was to be before."""
        self.booked = Booked(
            booking.endpoint.name,
            booking.at,
            booking.expected_hit,
            booking.new_tokens,
            booking.ahead,
            booking.running,
            booking.kv_tokens,
            booking.predicted,
        )

    def to_json(self, now: float, wall: float) -> dict[str, Any]:
        """``now``, ``wall``: of the clock, both."""
        decision = self.decision
        return {
            "at": wall - (now - decision.at),
            "request_id": decision.request_id,
            "attempt": decision.attempt,
            "seconds": decision.seconds,
            **decision.to_json(),
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
    """The last ones of all models, whatever configuration they were made by. Bounded by count and by bytes."""

    def __init__(self, clock: Clock, count: int = COUNT, size: int = BYTES) -> None:
        self.clock = clock
        self._count = count
        self._most = size
        self._size = 0
        self._ring: deque[DecisionRecord] = deque()
        # What candidates have in common, their names, is kept once for all decisions over the same ones.
        self._rosters: dict[tuple[str, str], tuple[Sequence[Endpoint], Roster]] = {}

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[DecisionRecord]:
        """Newest first."""
        return reversed(self._ring)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self._size

    def keep(self, request: Request, attempt: int, trace: Trace, made: Plan | str, began: float) -> DecisionRecord:
        """A decision that ``began`` then (Clock.monotonic()) is made now. ``made``: the plan, or why there is none, as
        the client is told."""
        ring, rosters = self._ring, self._rosters
        for run in trace:
            key, endpoints = (request.model.name, run.profile), run.candidates
            known = rosters.get(key)
            if known is None or (known[0] is not endpoints and known[0] != endpoints):
                known = rosters[key] = endpoints, Roster.of(endpoints)
            run.roster, run.candidates = known[1], ()  # what is kept must keep no endpoint alive
        decision = Decision.of(request, attempt, trace.handler, tuple(trace), began, self.clock.monotonic(), made)
        kept = DecisionRecord(decision)
        ring.append(kept)
        self._size += decision.size
        while self._size > self._most or len(ring) > self._count:
            self._size -= ring.popleft().decision.size
        return kept

    def endpoint_dropped(self, endpoint: str) -> None:
        self._rosters.clear()
