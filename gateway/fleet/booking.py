"""One leg's work on its endpoint: booked when it is placed, given back and learned from when it ends. Shared by the
proxy and the replay, so that what is replayed is what is served.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.fleet.cost import FittedCost
from gateway.fleet.fleet import Fleet
from gateway.fleet.ledger import Ledger, Reservation
from gateway.framework import GENERATES, NO_MATCH, Endpoint, Match, Model, Request, Role

BOOKED = 16
"""Tokens of a stream that are entered in the ledger at once: the block in which engines give out their KV memory."""

LEARNING_RATE = 0.05
"""Of a model's expected output: the last 20 answers weigh about two thirds."""


FULL = 0.9
"""Of an engine's KV memory in use, from which one that lets requests wait lets them wait for memory: the next prompt
does not fit into the rest. Not 1: prompts have some tens of thousands of tokens."""


FEWEST, MOST = 0.1, 100.0
"""Tokens of a stream's event: outside of these a count is a defect."""


def learn_output(model: Model, tokens: float, limit: int | None = None) -> None:
    """An answer had ``tokens``, and was allowed ``limit``: one that was cut off says no more than that it had so many
    at least."""
    if limit is not None and limit <= tokens < model.expected_output:
        return
    model.expected_output += LEARNING_RATE * (tokens - model.expected_output)


def learn_events(model: Model, tokens: float) -> None:
    """A stream had so many ``tokens`` an event: several where an engine drafts (speculative decoding) or gathers them
    (``--stream-interval``)."""
    model.event_tokens += LEARNING_RATE * (min(max(tokens, FEWEST), MOST) - model.event_tokens)


LEAST_DECODING = 0.25
"""Of the time between tokens, what their steps are taken to be at least, whatever prompts are believed to take."""


@dataclass(slots=True, eq=False)
class Booking:
    """One leg's work on its endpoint. ``at``: when the engine could begin with the prompt, as far as we know.

    ``match``: what was held there of the prompt and is of use to it; ``expected_hit``: of which the engine will tell.
    ``running``, ``kv_tokens``: what was there when it was booked. ``predicted``: seconds from ``at`` to the first
    token; None: nothing is computed there.
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
    def make(cls, request: Request, endpoint: Endpoint, fleet: Fleet, now: float) -> Booking:
        """Book the prompt's place; ``computes`` books its computing. Both without an await after the load was read."""
        running, _, _, _, kv_tokens = endpoint.load.sums(now)
        prompt, match = request.prompt_tokens, request.matches[endpoint.slot]
        useful = match if request.kind in GENERATES else NO_MATCH
        ledger = fleet.ledger(endpoint)
        reservation = ledger.reserve(0, prompt)
        hit = match.expected_hit
        return cls(endpoint, reservation, fleet.cost(endpoint), ledger, now, prompt, useful, hit, running, kv_tokens)

    @property
    def new_tokens(self) -> int:
        """Of the prompt, to be computed there."""
        return max(self.prompt_tokens - self.match.expected_hit, 1)

    def computes(self, now: float, *, told: bool) -> None:
        """The engine computes the prompt, from ``now`` on. ``told``: we shall hear when that is done (a stream)."""
        self.at = now
        # It is among the requests there already, and its prompt in the KV memory: neither is beside it.
        running, waiting, attention, done, kv_tokens = self.ledger.sums(now)
        beside = running - 1, waiting, attention, done, kv_tokens - self.prompt_tokens
        decodes = self.endpoint.role is not Role.PREFILL
        scalars = self.cost.scalars
        first = scalars.first_token(beside, self.match, self.prompt_tokens, decodes=decodes)
        self.ledger.step_tokens = scalars.step_tokens
        self.predicted = first.seconds
        self.reservation.computes(
            self.new_tokens,
            context=self.match.expected_hit,
            seconds=first.prefill,
            expires_prefill_at=None if told else now + first.seconds,
        )

    def first_token(self) -> None:
        """It came: the prompt is computed."""
        self.reservation.first_token()
        self._prefilled = self.ledger.prefilled

    def learn_prefill(self, seconds: float) -> None:
        """The prompt was computed within ``seconds``. Prompts are computed in order, so what was queued ahead of it is
        in them; so is what had been done of that before, if the time is taken from when its first was begun."""
        if self._waits_for_memory():
            return
        decodes = self.endpoint.role is not Role.PREFILL
        self.cost.learn_prefill(
            self.new_tokens,
            self.match.expected_hit,
            seconds + self._begun_before,
            at=self.at,
            ahead=self.reservation.ahead,
            ahead_attention=self.reservation.ahead_attention,
            running=self.running if decodes else 0.0,
            kv_tokens=self.kv_tokens if decodes else 0.0,
        )

    def learn_whole(self, steps: float, seconds: float) -> None:
        """The request has ended well, and was not streamed: its answer came ``seconds`` after ``at``, in so many steps
        behind its first token."""
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
        """The request has ended well at ``now``: so many ``steps`` behind its first token took ``seconds``.

        What prompts took that were computed meanwhile is not the steps' own; the batch is that of the beginning and of
        the end, on average.
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
        """Seconds before ``at`` at which the engine began with the queue at whose end the prompt was."""
        return max(0.0, self.at - self.reservation.since)

    def _waits_for_memory(self) -> bool:
        """Whether what the engine takes now is, for the most part, a wait for others to end: it would be learned as
        computing, at some times its true length."""
        metrics = self.endpoint.metrics
        return metrics.waiting > 0 and metrics.kv_usage > FULL
