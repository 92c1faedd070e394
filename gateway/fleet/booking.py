"""One leg's work on its endpoint: booked when it is placed, given back and learned from when it ends. Shared by the
proxy and the replay, so that what is replayed is what is served.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.fleet.cost import FittedCost
from gateway.fleet.fleet import Fleet
from gateway.fleet.ledger import Reservation
from gateway.framework import GENERATES, Endpoint, Model, Request

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


@dataclass(slots=True, eq=False)
class Booking:
    """One leg's work on its endpoint. ``at``: when the engine could begin with the prompt, as far as we know.

    ``predicted``: seconds from then to the first token; None: nothing is computed there. ``expected_hit``,
    ``new_tokens``: of the prompt, held there and to be computed there. ``running``, ``kv_tokens``: what was there when
    it was booked.
    """

    endpoint: Endpoint
    reservation: Reservation
    cost: FittedCost
    at: float
    expected_hit: int
    new_tokens: int
    running: float
    kv_tokens: float
    predicted: float | None = None

    @classmethod
    def make(cls, request: Request, endpoint: Endpoint, fleet: Fleet, now: float) -> Booking:
        """Book the prompt's place; ``computes`` books its computing. Both without an await after the load was read."""
        running, _, _, _, kv_tokens = endpoint.load.sums(now)
        prompt, held = request.prompt_tokens, request.matches[endpoint.slot].expected_hit
        new = prompt
        if request.kind in GENERATES:
            new = prompt - held if prompt > held else 1  # Request.new_tokens
        reservation = fleet.ledger(endpoint).reserve(0, prompt)
        return cls(endpoint, reservation, fleet.cost(endpoint), now, held, new, running, kv_tokens)

    def computes(self, now: float, *, told: bool) -> None:
        """The engine computes the prompt, from ``now`` on. ``told``: we shall hear when that is done (a stream)."""
        self.at = now
        # It is among the requests there already, and its prompt in the KV memory: neither is beside it.
        running, waiting, attention, done, kv_tokens = self.endpoint.load.sums(now)
        beside = running - 1, waiting, attention, done, kv_tokens - (self.expected_hit + self.new_tokens)
        seconds = self.cost.prefill_seconds(self.new_tokens, self.expected_hit)
        self.predicted = predicted = self.cost.wait(beside) + seconds
        self.reservation.computes(
            self.new_tokens,
            context=self.expected_hit,
            seconds=seconds,
            expires_prefill_at=None if told else now + predicted,
        )

    def learn_prefill(self, seconds: float) -> None:
        """The prompt was computed within ``seconds``. Prompts are computed in order, so what was queued ahead of it is
        in them; so is what had been done of that before, if the time is taken from when its first was begun."""
        if self._waits_for_memory():
            return
        reservation = self.reservation
        self.cost.learn_prefill(
            self.new_tokens,
            self.expected_hit,
            seconds + max(0.0, self.at - reservation.since),
            ahead=reservation.ahead,
            ahead_attention=reservation.ahead_attention,
        )

    def learn_whole(self, prompt_tokens: int, steps: float, seconds: float) -> None:
        """The request has ended well, and was not streamed: its answer came ``seconds`` after ``at``, in so many steps
        behind its first token."""
        if self._waits_for_memory():
            return
        reservation = self.reservation
        self.cost.learn_whole(
            self.new_tokens,
            self.expected_hit,
            self.running + 1,
            self.kv_tokens + prompt_tokens,
            steps,
            seconds + max(0.0, self.at - reservation.since),
            ahead=reservation.ahead,
            ahead_attention=reservation.ahead_attention,
        )

    def learn(self, prompt_tokens: int, *, first_token: float | None, per_token: float | None) -> None:
        """The request has ended well. Seconds; None: nothing tells.

        ``first_token``: from ``at`` to its first token. ``per_token``: between two tokens, on average.
        """
        if first_token is not None:
            self.learn_prefill(first_token)
        if per_token is not None:
            self.cost.learn_step(self.running + 1, self.kv_tokens + prompt_tokens, per_token)
        self.cost.learn_nothing(prefill=first_token is None, step=per_token is None)

    def _waits_for_memory(self) -> bool:
        """Whether what the engine takes now is, for the most part, a wait for others to end: it would be learned as
        computing, at some times its true length."""
        metrics = self.endpoint.metrics
        return metrics.waiting > 0 and metrics.kv_usage > FULL
