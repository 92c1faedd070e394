"""The last decisions, for who asks why a request went where it went. No prompt is kept, and no endpoint.

Every request pays for this, so that a decision is kept as the names and arrays that rendering it takes
(``gateway.proxy.account``), and what candidates have in common, their names, is kept once for all decisions over the
same ones. An endpoint that is dropped must be free to go: what is kept of it is its name.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.fleet.booking import Booking
from gateway.framework import Clock, Endpoint, Match, Observer, Plan, Request, Settled
from gateway.scheduling.trace import ProfileTrace, Trace, gone

COUNT = 1000
"""Decisions: some seconds of a busy gateway, and hours of a quiet one."""

BYTES = 16 * 1024 * 1024
"""Of all decisions together: a thousand of them over a hundred endpoints, each of which holds something of the prompt,
take about that."""

OF_ONE, OF_SCORE, OF_NAME, OF_MATCH = 1800, 8, 16, 200
"""Bytes: of a decision without its candidates, of a scorer's score of one, of a name where filters removed some, and of
what one holds of the prompt."""


class Roster(NamedTuple):
    """Candidates, without keeping them: their names, and their slots, by which matches are found."""

    names: Sequence[str]
    slots: Sequence[int]


class Step(NamedTuple):
    """One run of a profile. ``removed``: by filters that removed any. ``scored``: names of candidates that the filters
    left; None: all. ``columns``: in the order of ``weights``, each scorer's scores of those; empty where it came to
    none. ``silent``: scorers that failed, and how."""

    profile: str
    roster: Roster
    removed: Sequence[tuple[str, Sequence[str]]]
    scored: Sequence[str] | None
    columns: Sequence[array[float]]
    weights: Mapping[str, float]
    silent: Mapping[str, str]
    picked: str | None


class Booked(NamedTuple):
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


class Decision:
    """One placement of a request, or one that could not be made. Times are of ``Clock.monotonic()``.

    ``attempt``: 1 for a request's first. ``matches``: by slot. ``plan``: the endpoints' names, reason,
    connector, strictness and costs of the plan; None where there is none: ``error`` says why.

    Filled in later: ``result``, how the attempt ended. ``cached_tokens``: what the engine that computed the prompt said
    it had of it. ``first_token``: seconds from when it was booked there, of a stream. ``settled``: what became of
    the request, of its last attempt.
    """

    __slots__ = (
        "adapter", "at", "attempt", "booked", "cached_tokens", "error", "exact", "expected_output", "first_token",
        "handler", "kind", "matches", "max_tokens", "model", "plan", "prompt_tokens", "request_id", "result", "seconds",
        "settled", "size", "steps", "stream",
    )  # fmt: skip

    def __init__(self, request: Request, attempt: int, handler: str, steps: Sequence[Step], began: float, at: float):
        self.at = at
        self.seconds = at - began
        self.attempt = attempt
        self.request_id = request.id
        self.model = request.model.name
        self.adapter = request.adapter
        self.kind = request.kind
        self.stream = request.stream
        self.prompt_tokens = request.prompt_tokens
        self.exact = request.exact
        self.max_tokens = request.max_tokens
        self.expected_output = request.expected_output
        self.matches: Mapping[int, Match] = request.matches
        self.handler = handler
        self.steps = steps
        self.plan: tuple[str, str | None, str, str, bool, Mapping[str, float]] | None = None
        self.booked: Booked | None = None
        self.error: str | None = None
        self.result: str | None = None
        self.cached_tokens: int | None = None
        self.first_token: float | None = None
        self.settled: Settled | None = None
        self.size = OF_ONE + OF_MATCH * len(request.matches)
        for step in steps:
            each = OF_SCORE * len(step.columns)
            if step.scored is not None:
                each += OF_NAME
            self.size += each * len(step.roster.names)

    def is_at(self, endpoint: str) -> bool:
        """Whether the endpoint of this name has a leg of it."""
        return self.plan is not None and endpoint in self.plan[:2]

    def book(self, booking: Booking) -> None:
        """The prompt is computed there, and no longer where it was to be before."""
        self.booked = Booked(
            booking.endpoint.name,
            booking.at,
            booking.expected_hit,
            booking.new_tokens,
            booking.reservation.ahead,
            booking.running,
            booking.kv_tokens,
            booking.predicted,
        )

    def ended(self, result: str, first_output_at: float | None) -> None:
        """The attempt is over. ``first_output_at``: Clock.monotonic(); None: no token was seen to come."""
        self.result = result
        if first_output_at is not None and self.booked is not None:
            self.first_token = first_output_at - self.booked.at


class Decisions(Observer):
    """The last ones of all models, whatever configuration they were made by. Bounded by count and by bytes."""

    def __init__(self, clock: Clock, count: int = COUNT, size: int = BYTES) -> None:
        self.clock = clock
        self._count = count
        self._most = size
        self._size = 0
        self._ring: deque[Decision] = deque()
        self._rosters: dict[tuple[str, str], tuple[Sequence[Endpoint], Roster]] = {}

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[Decision]:
        """Newest first."""
        return reversed(self._ring)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self._size

    def placed(
        self, request: Request, attempt: int, trace: Trace, plan: Plan, booking: Booking, began: float
    ) -> Decision:
        """The request was placed: ``plan`` was booked, ``booking`` is where its prompt will be computed.

        ``began``: Clock.monotonic() of when the decision was begun.
        """
        decision = self._decision(request, attempt, trace, began)
        prefill = plan.prefill
        decision.plan = (
            plan.decode.name,
            None if prefill is None else prefill.name,
            plan.reason,
            plan.connector,
            plan.strict,
            plan.costs,
        )
        decision.book(booking)
        return decision

    def failed(self, request: Request, attempt: int, trace: Trace, error: str, began: float) -> Decision:
        """The request could not be placed. ``error``: the client's message."""
        decision = self._decision(request, attempt, trace, began)
        decision.error = error
        return decision

    def endpoint_dropped(self, endpoint: str) -> None:
        self._rosters.clear()

    def _decision(self, request: Request, attempt: int, trace: Trace, began: float) -> Decision:
        model, ring = request.model.name, self._ring
        steps = [self._step(model, profile) for profile in trace.profiles]
        decision = Decision(request, attempt, trace.handler, steps, began, self.clock.monotonic())
        ring.append(decision)
        self._size += decision.size
        while self._size > self._most or len(ring) > self._count:
            self._size -= ring.popleft().size
        return decision

    def _step(self, model: str, profile: ProfileTrace) -> Step:
        key, endpoints = (model, profile.name), profile.candidates
        known = self._rosters.get(key)
        if known is None or (known[0] is not endpoints and known[0] != endpoints):
            known = self._rosters[key] = endpoints, roster_of(endpoints)
        return step_of(profile, known[1])


def roster_of(endpoints: Sequence[Endpoint]) -> Roster:
    return Roster(tuple([endpoint.name for endpoint in endpoints]), tuple([endpoint.slot for endpoint in endpoints]))


def step_of(profile: ProfileTrace, roster: Roster | None = None) -> Step:
    """``roster``: of its candidates, where there is one."""
    removed: Sequence[tuple[str, Sequence[str]]] = ()
    left: Sequence[str] | None = None
    if profile.filtered:
        removed = [(name, tuple([one.name for one in gone(given, kept)])) for name, given, kept in profile.filtered]
        left = tuple([one.name for one in profile.filtered[-1][2]])
    return Step(
        profile.name,
        roster_of(profile.candidates) if roster is None else roster,
        removed,
        left,
        [array("d", column) for column in profile.columns.values()],
        profile.weights,
        profile.silent,
        profile.picked[0].name if profile.picked else None,
    )
