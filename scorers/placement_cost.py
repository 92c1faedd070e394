"""The scorer ``placement-cost``, the default.

What it does
    Predicts, in seconds, what the request would cost on each endpoint: the wait for its own first token, what its
    prefill adds to the answers that run there, and what the resident tokens there add to its own decode:

        cost(p) = ttft(p) + lam * prefill(new tokens on p) * running(p) + lam * expected output * c_kv * kv tokens(p)
                  + reuse * prefill(new tokens on p)
        ttft(p) = prefill(tokens queued on p) + prefill(new tokens on p) + what p's running batch adds to those steps

    1 is a cost of nothing, 1/2 a cost of ``second`` seconds: score = 1 / (1 + cost / second). Absolute: a candidate
    more or less changes no other's score.

Scheduling intent
    Cache hits, queues and running batches in one unit, so that they need no weights between them: a prefix is worth
    the seconds its prefill takes, and a request goes elsewhere once the wait there is shorter than that by more than
    the harm of a second copy: in a cache that is full, each new token pushes another one out, which whoever asks for
    it next has to compute again.

Inputs
    ``matches`` (expected hit), ``prompt_tokens``, ``expected_output``; ``load`` (the ledger: our own work at once,
    others' from scrapes) and ``cost`` (the endpoint's cost model).

Parameters
    ``lam`` (default 0.1): weight of what others and the own decode suffer, against the own first token. 0.03 to 0.3
    made no difference in simulation; 1 had half as much again in p99 TTFT.
    ``reuse`` (default 0.5): how likely what is pushed out would have been asked for again (as Preble's eviction cost,
    ICLR 2025). On three vLLM engines whose caches held 30 groups of chats only together, the share of what a perfect
    split serves from cache was 0.965 to 0.988 with 0, 0.990 to 0.995 with 0.3, 1.00 with 1.
    ``second`` (default 1.0): seconds whose score is 1/2. Matters only where this scorer is blended with others.

Example
    ``plugins: [{name: cost, type: placement-cost, parameters: {lam: 0.1}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import GENERATES, Context, Endpoint, Request

STEP_TOKENS = 8192
"""Prompt tokens that an engine computes in one step: vLLM's default ``max_num_batched_tokens`` on an H100."""


class PlacementCost:
    """Seconds, as 1 / (1 + cost / second)."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        lam: float = 0.1
        reuse: float = 0.5
        second: float = 1.0

        def __post_init__(self) -> None:
            if not self.lam >= 0:
                raise ValueError("lam must be at least 0")
            if not 0 <= self.reuse <= 1:
                raise ValueError("reuse must be in 0..1")
            if not self.second > 0:
                raise ValueError("second must be above 0 seconds")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._lam = parameters.lam
        self._reuse = parameters.reuse
        self._second = parameters.second

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        second = self._second
        return [second / (second + self.seconds(request, endpoint)) for endpoint in endpoints]

    def seconds(self, request: Request, endpoint: Endpoint) -> float:
        """The cost of ``request`` on ``endpoint``."""
        load, cost = endpoint.load, endpoint.cost
        new = request.new_tokens(endpoint)
        prefill = cost.prefill_seconds(new, request.prompt_tokens - new)
        queued = load.prefill_tokens
        ttft = prefill + (cost.prefill_seconds(queued) if queued else 0.0)
        displaced = self._reuse * prefill
        running = load.requests + load.foreign_requests
        if running <= 0:
            return ttft + displaced
        kv_tokens = load.kv_tokens + load.foreign_kv_tokens
        # Each step of the prefills carries the running batch with it, and takes as much longer.
        steps = 1 + (queued + new) / STEP_TOKENS
        ttft += steps * max(0.0, cost.step_seconds(running, int(kv_tokens)) - cost.step_seconds(0, 0))
        output = request.expected_output if request.kind in GENERATES else 0.0
        return ttft + displaced + self._lam * (prefill * running + output * cost.kv_token_seconds * kv_tokens)
