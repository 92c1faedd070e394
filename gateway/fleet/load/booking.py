"""One leg's work on its endpoint: booked when the leg is placed, given back and learned from when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.ledger import Ledger, Reservation
from gateway.framework import GENERATES, NO_MATCH, Endpoint, Match, Model, Request

BOOKING_STEP = 16
"""Tokens of a stream after which the ledger is updated: the block in which engines allocate KV memory."""

LEARNING_RATE = 0.05
"""Weight of one answer in a model's expected output: the last 20 answers weigh about two thirds."""


FULL = 0.9
"""Share of KV memory in use from which an engine's waiting requests wait for memory: the next prompt does not fit.
Below 1, because a prompt may have some tens of thousands of tokens."""


FEWEST, MOST = 0.1, 100.0
"""Bounds of the tokens of one stream event: a count outside of them is a defect."""


def learn_output(model: Model, tokens: float, limit: int | None = None) -> None:
    """An answer had ``tokens`` of the ``limit`` that it was allowed. One that was cut off below the expected output
    teaches nothing: its length is a lower bound."""
    if limit is not None and limit <= tokens < model.expected_output:
        return
    model.expected_output += LEARNING_RATE * (tokens - model.expected_output)


def learn_events(model: Model, tokens: float) -> None:
    """A stream had ``tokens`` per event: several with speculative decoding or with ``--stream-interval``."""
    model.event_tokens += LEARNING_RATE * (min(max(tokens, FEWEST), MOST) - model.event_tokens)


LEAST_DECODING = 0.25
"""Least share of the time between tokens that is credited to decode steps, however long prompts are estimated to
take."""


class Accounts(Protocol):
    """Gives each endpoint's ledger and cost model: the fleet."""

    def ledger(self, endpoint: Endpoint) -> Ledger: ...

    def cost(self, endpoint: Endpoint) -> FittedCost: ...


@dataclass(slots=True, eq=False)
class Booking:
    """One leg's work on its endpoint. ``at``: Clock.monotonic() when the engine could start with the prompt.

    ``match``: what the endpoint held of the prompt and can use; ``expected_hit``: what the engine should report of it.
    ``running``, ``kv_tokens``: requests and resident tokens there when it was booked. ``predicted``: seconds from
    ``at`` to the first token; None: the prompt is not computed there.
    """

    endpoint: Endpoint
    reservation: Reservation
    cost: FittedCost
    ledger: Ledger
    at: float
    prompt_tokens: int
    match: Match
    expected_hit: int
    running: float
    kv_tokens: float
    predicted: float | None = None
    _prefilled: float = 0.0

    @classmethod
    def make(cls, request: Request, endpoint: Endpoint, accounts: Accounts, now: float, *, kv: bool = True) -> Booking:
        """Book the prompt's KV memory; ``book_prefill`` books its computing. There is no await between reading the load
        and these two calls. ``kv``: the leg keeps the prompt's KV; else it is one request, and no tokens."""
        running, _, _, _, kv_tokens = endpoint.load.sums(now)
        prompt, match = request.prompt_tokens, request.matches[endpoint.slot]
        useful = match if request.kind in GENERATES else NO_MATCH
        ledger = accounts.ledger(endpoint)
        reservation = ledger.reserve(0, prompt if kv else 0)
        endpoint.in_flight += 1
        hit = match.expected_hit
        return cls(endpoint, reservation, accounts.cost(endpoint), ledger, now, prompt, useful, hit, running, kv_tokens)

    @property
    def new_tokens(self) -> int:
        """Prompt tokens to compute there; at least 1."""
        return max(self.prompt_tokens - self.match.expected_hit, 1)

    def book_prefill(self, now: float, *, reported: bool) -> None:
        """The engine computes the prompt, from ``now`` on. ``reported``: a stream will show when that is done."""
        self.at = now
        # The load includes this request and its prompt already: take them off.
        running, waiting, attention, done, kv_tokens = self.ledger.sums(now)
        beside = running - 1, waiting, attention, done, kv_tokens - self.prompt_tokens
        scalars = self.cost.scalars
        first = scalars.first_token(beside, self.match, self.prompt_tokens)
        self.ledger.step_tokens = scalars.step_tokens
        self.predicted = first.seconds
        self.reservation.book_prefill(
            self.new_tokens,
            context=self.match.expected_hit,
            seconds=first.prefill,
            expires_prefill_at=None if reported else now + first.seconds,
        )

    def settle(self) -> None:
        """Give back all that is left. Harmless if it was given back."""
        if self.reservation.settle():
            self.endpoint.in_flight -= 1

    def first_token(self) -> None:
        """The first token came: the prompt is computed."""
        self.reservation.first_token()
        self._prefilled = self.ledger.prefilled

    def learn_prefill(self, seconds: float) -> None:
        """The first token came ``seconds`` after ``at``.

        Prompts are computed in order. So the time from when the engine began with the queue covers all that was queued
        ahead of this prompt, and this prompt.
        """
        if self._waits_for_memory():
            return
        self.cost.learn_prefill(
            self.new_tokens,
            self.match.expected_hit,
            seconds + self._begun_before,
            at=self.at,
            ahead=self.reservation.ahead,
            ahead_attention=self.reservation.ahead_attention,
            running=self.running,
            kv_tokens=self.kv_tokens,
        )

    def learn_whole(self, steps: float, seconds: float) -> None:
        """An unstreamed request has ended well: its answer came ``seconds`` after ``at``, ``steps`` decode steps behind
        its first token."""
        if self._waits_for_memory():
            return
        self.cost.learn_whole(
            self.new_tokens,
            self.match.expected_hit,
            self.running + 1,
            self.kv_tokens + self.prompt_tokens,
            steps,
            seconds + self._begun_before,
            at=self.at,
            ahead=self.reservation.ahead,
            ahead_attention=self.reservation.ahead_attention,
        )

    def learn_steps(self, now: float, steps: float, seconds: float) -> None:
        """The request has ended well at ``now``: ``steps`` decode steps behind its first token took ``seconds``.

        The time of prompts that were computed meanwhile is taken off. The batch is the mean of that at the beginning
        and that at the end.
        """
        stalled = self.ledger.prefilled - self._prefilled
        running, _, _, _, kv_tokens = self.ledger.sums(now)
        self.cost.learn_step(
            (self.running + 1 + running) / 2,
            (self.kv_tokens + self.prompt_tokens + kv_tokens) / 2,
            max(seconds - stalled, LEAST_DECODING * seconds) / steps,
            at=self.at,
        )

    @property
    def _begun_before(self) -> float:
        """Seconds before ``at`` when the engine began with the queue that ends with this prompt."""
        return max(0.0, self.at - self.reservation.since)

    def _waits_for_memory(self) -> bool:
        """Whether requests wait there for KV memory, mostly: that wait would be learned as computing time."""
        metrics = self.endpoint.metrics
        return metrics.waiting > 0 and metrics.kv_usage > FULL
