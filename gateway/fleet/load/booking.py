"""One leg's work on its endpoint: booked when the leg is placed, given back and learned from when it ends."""

from __future__ import annotations

from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.ledger import Ledger, Reservation
from gateway.framework import GENERATES, NO_MATCH, Endpoint, Request

BOOKING_STEP = 16
"""Tokens of a stream after which the ledger is updated: the block in which engines allocate KV memory."""

FULL = 0.9
"""Share of KV memory in use from which an engine's waiting requests wait for memory: the next prompt does not fit.
Below 1, because a prompt may have some tens of thousands of tokens."""

LEAST_DECODING = 0.25
"""Least share of the time between tokens that is credited to decode steps, however long prompts are estimated to
take."""


class Booking(Reservation):
    """One leg's work on its endpoint: its reservation, and what that teaches.

    ``at``: Clock.monotonic() when the engine could start with the prompt.
    ``match``: what the endpoint held of the prompt and can use; ``expected_hit``: what the engine should report of it;
    ``new_tokens``: prompt tokens to compute there, at least 1. ``running``, ``kv_tokens``: requests and resident tokens
    there when it was booked. ``predicted``: seconds from ``at`` to the first token; None: the prompt is not computed
    there.
    """

    __slots__ = (
        "_prefilled", "at", "cost", "expected_hit", "kv_tokens", "match", "new_tokens", "predicted", "prompt_tokens",
        "running",
    )  # fmt: skip

    def __init__(self, request: Request, endpoint: Endpoint, now: float, *, kv: bool = True) -> None:
        """Book the prompt's KV memory; ``book_prompt`` books its computing. There is no await between reading the load
        and these two calls. ``endpoint``: with a ledger and a fitted cost model, as a fleet's. ``kv``: the leg keeps
        the prompt's KV; else it is one request, and no tokens."""
        ledger, cost = endpoint.load, endpoint.cost
        assert isinstance(ledger, Ledger)
        assert isinstance(cost, FittedCost)
        self.cost = cost
        self.at = now
        self.running, _, _, _, self.kv_tokens, _ = ledger.sums(now)
        match = request.matches[endpoint.slot]
        self.expected_hit = match.expected_hit
        self.match = match = match if request.kind in GENERATES else NO_MATCH
        self.prompt_tokens = request.prompt_tokens
        self.new_tokens = max(request.prompt_tokens - match.expected_hit, 1)
        Reservation.__init__(self, ledger, request.prompt_tokens if kv else 0, endpoint)
        self.predicted: float | None = None
        self._prefilled = 0.0

    def book_prompt(self, now: float, *, reported: bool) -> None:
        """The engine computes the prompt, from ``now`` on. ``reported``: a stream will show when that is done."""
        self.at, ledger = now, self._ledger
        # The load includes this request and its prompt already: take them off.
        running, waiting, attention, done, kv_tokens, share = ledger.sums(now)
        beside = running - 1, waiting, attention, done, kv_tokens - self.prompt_tokens, share
        scalars = self.cost.scalars
        first = scalars.first_token(beside, self.match, self.prompt_tokens)
        self.predicted = seconds = sum(first)
        self.book_prefill(
            self.new_tokens,
            context=self.match.expected_hit,
            seconds=first.prefill,
            expires_prefill_at=None if reported else now + seconds,
        )

    def unreported(self) -> None:
        """Nothing will show when the prompt is computed, though its answer is a stream: it counts as done when that is
        predicted."""
        if self.predicted is not None:
            self.expire_prefill(self.at + self.predicted)

    def seconds_left(self, now: float, steps: float) -> float:
        """Seconds from ``now`` until an answer of so many decode ``steps`` is predicted to end, by the present load."""
        running, _, _, _, kv_tokens, _ = self._ledger.sums(now)
        answer = steps * self.cost.scalars.step_seconds(running, kv_tokens)
        return max(0.0, self.at + (self.predicted or 0.0) + answer - now)

    def first_token(self) -> None:
        """The first token came: the prompt is computed."""
        super().first_token()
        self._prefilled = self._ledger.prefilled

    def learn_prefill(self, seconds: float) -> None:
        """The first token came ``seconds`` after ``at``.

        Prompts are computed in order. So the time from when the engine began with the queue covers all that was queued
        ahead of this prompt, and this prompt.
        """
        metrics = self.endpoint.metrics
        if metrics.waiting > 0 and metrics.kv_usage > FULL:  # the wait for memory is no computing
            return
        self.cost.learn_prefill(
            self.new_tokens,
            self.match.expected_hit,
            seconds + max(0.0, self.at - self.since),
            at=self.at,
            ahead=(self.ahead, self.ahead_attention),
            running=self.running,
            kv_tokens=self.kv_tokens,
        )

    def learn_whole(self, steps: float, seconds: float) -> None:
        """An unstreamed request has ended well: its answer came ``seconds`` after ``at``, ``steps`` decode steps behind
        its first token."""
        metrics = self.endpoint.metrics
        if metrics.waiting > 0 and metrics.kv_usage > FULL:  # the wait for memory is no computing
            return
        self.cost.learn_whole(
            self.new_tokens,
            self.match.expected_hit,
            self.running + 1,
            self.kv_tokens + self.prompt_tokens,
            steps,
            seconds + max(0.0, self.at - self.since),
            at=self.at,
            ahead=(self.ahead, self.ahead_attention),
        )

    def learn_steps(self, now: float, steps: float, seconds: float) -> None:
        """The request has ended well at ``now``: ``steps`` decode steps behind its first token took ``seconds``.

        The time of prompts that were computed meanwhile is taken off. The batch is the mean of that at the beginning
        and that at the end.
        """
        stalled = self._ledger.prefilled - self._prefilled
        running, _, _, _, kv_tokens, _ = self._ledger.sums(now)
        self.cost.learn_step(
            (self.running + 1 + running) / 2,
            (self.kv_tokens + self.prompt_tokens + kv_tokens) / 2,
            max(seconds - stalled, LEAST_DECODING * seconds) / steps,
            at=self.at,
        )
