"""The scorer ``placement-cost``, the default.

What it does
    Predicts, in seconds, what the request would cost on each endpoint: the wait for its own first token, what its
    prefill adds to the answers that run there, and what the resident tokens there add to its own decode:

        cost(p) = ttft(p) + lam * prefill(new tokens on p) * running(p) + lam * expected output * c_kv * kv tokens(p)
                  + reuse * full(p) * prefill(new tokens on p)
        ttft(p) = prefill(tokens queued on p) + prefill(new tokens on p) + fetch(what p holds, but not on its GPU)
                  + what p's running batch adds to those steps
        full(p) = the share of p's KV memory that keeps something; 1 where that is not known

    1 is a cost of nothing, 1/2 a cost of ``second`` seconds: score = 1 / (1 + cost / second). Absolute: a candidate
    more or less changes no other's score.

    ``explain`` tells the terms apart: ``queued``, ``prefill``, ``fetch``, ``batch`` (the first token's four), ``stall``
    (of the answers that run there), ``decode`` (the own one's, among what is resident), ``displaced`` (by reuse).

Scheduling intent
    Cache hits, queues and running batches in one unit, so that they need no weights between them: a prefix is worth
    the seconds its prefill takes, and a request goes elsewhere once the wait there is shorter than that by more than
    the harm of a second copy: in a cache that is full, each new token pushes another one out, which whoever asks for
    it next has to compute again. So what is new goes, of engines that are alike, to the one with the most room: what
    they hold grows evenly, and none has to forget what another had room for. What lies in the CPU's memory or in
    storage is worth less by what fetching it takes.

Inputs
    ``matches`` (expected hit, by tier; room), ``prompt_tokens``, ``expected_output``; ``load`` (the ledger: our own
    work at once, others' from scrapes), ``cost`` (the endpoint's cost model) and ``metrics.kv_capacity``.

Parameters
    ``lam`` (default 0.1): weight of what others and the own decode suffer, against the own first token. 0.03 to 0.3
    made no difference in simulation; 1 had half as much again in p99 TTFT.
    ``reuse`` (default 0.5): how likely what is pushed out would have been asked for again (as Preble's eviction cost,
    ICLR 2025). On three vLLM engines whose caches held 30 groups of chats only together, the share of what a perfect
    split serves from cache was 0.965 to 0.988 with 0, 0.990 to 0.995 with 0.3, 1.00 with 1.
    ``cpu_fetch`` (default 1.6e-6): seconds a token to bring it from the CPU's memory: 320 KB of a 70B model over four
    links of 50 GB/s, against 79e-6 to compute it.
    ``storage_fetch`` (default 25.6e-6): the same from a store: over one link of 100 Gbit/s.
    ``second`` (default 1.0): seconds whose score is 1/2. Matters only where this scorer is blended with others.

Example
    ``plugins: [{name: cost, type: placement-cost, parameters: {lam: 0.1}}]``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.framework import GENERATES, NO_MATCH, Context, Endpoint, Match, Request

STEP_TOKENS = 8192
"""Prompt tokens that an engine computes in one step: vLLM's default ``max_num_batched_tokens`` on an H100."""


class PlacementCost:
    """Seconds, as 1 / (1 + cost / second)."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        lam: float = 0.1
        reuse: float = 0.5
        cpu_fetch: float = 1.6e-6
        storage_fetch: float = 25.6e-6
        second: float = 1.0

        def __post_init__(self) -> None:
            for name in ("lam", "cpu_fetch", "storage_fetch"):
                if not getattr(self, name) >= 0:
                    raise ValueError(f"{name} must be at least 0")
            if not 0 <= self.reuse <= 1:
                raise ValueError("reuse must be in 0..1")
            if not self.second > 0:
                raise ValueError("second must be above 0 seconds")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._lam = parameters.lam
        self._reuse = parameters.reuse
        self._cpu_fetch = parameters.cpu_fetch
        self._storage_fetch = parameters.storage_fetch
        self._second = parameters.second
        self._clock = context.clock

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        # What ``explain`` tells, added up. It runs for each candidate of each request: as one loop without calls it
        # takes a fifth less than as a sum of terms.
        second, lam, full = self._second, self._lam, 1 + self._reuse
        prompt, output, find = request.prompt_tokens, self._output(request), request.matches.get
        now, scores = self._clock.monotonic(), []
        room_of = request.matches.room.get
        for endpoint in endpoints:
            running, waiting, attention, done, kv_tokens = endpoint.load.sums(now)
            token, quadratic, _, step_request, kv_token, _ = endpoint.cost.scalars
            match = find(endpoint.slot, NO_MATCH)
            held = match.expected_hit
            new = prompt - held if prompt > held else 1
            share = full
            if room := room_of(endpoint.slot):
                share -= self._spared(endpoint, room - waiting - new / 2)
            cost = new * (token + quadratic * (prompt - new / 2)) * (share + lam * running)
            if waiting:
                queued = waiting * token + quadratic * attention - done
                if queued > 0:
                    cost += queued
            cost += (1 + (waiting + new) / STEP_TOKENS) * (step_request * running + kv_token * kv_tokens)
            cost += output * kv_token * kv_tokens
            if match.gpu < held:
                cost += self._fetch(match)
            scores.append(second / (second + cost))
        return scores

    def explain(self, request: Request, endpoint: Endpoint, /) -> Mapping[str, float]:
        """The terms of the cost, in seconds: their sum is what the score is made of."""
        cost, match = endpoint.cost.scalars, request.matches[endpoint.slot]
        room = request.matches.room.get(endpoint.slot, 0)
        running, waiting, attention, done, kv_tokens = endpoint.load.sums(self._clock.monotonic())
        new = request.new_tokens(endpoint)
        prefill = new * (cost.prefill_token + cost.prefill_quadratic * (request.prompt_tokens - new / 2))
        queued = waiting * cost.prefill_token + cost.prefill_quadratic * attention - done
        # Each step of the prefills carries the running batch with it, and takes as much longer.
        steps = 1 + (waiting + new) / STEP_TOKENS
        return {
            "queued": max(0.0, queued),
            "prefill": prefill,
            "fetch": self._fetch(match) if match.gpu < match.expected_hit else 0.0,
            "batch": steps * (cost.step_request * running + cost.kv_token * kv_tokens),
            "stall": self._lam * prefill * running,
            "decode": self._output(request) * cost.kv_token * kv_tokens,
            "displaced": (self._reuse - self._spared(endpoint, room - waiting - new / 2)) * prefill,
        }

    def _spared(self, endpoint: Endpoint, room: float) -> float:
        """Of ``reuse``, what falls away where there is ``room``, in tokens. What is stored there pushes out nothing
        now, but takes room away from what comes; the less is left, the likelier it is that this will be missed."""
        size = endpoint.metrics.kv_capacity
        return self._reuse * min(1.0, room / size) if room > 0 and size > 0 else 0.0

    def _output(self, request: Request) -> float:
        """Tokens that the answer is expected to have, times their weight."""
        return self._lam * request.expected_output if request.kind in GENERATES else 0.0

    def _fetch(self, match: Match) -> float:
        held = match.expected_hit
        return self._cpu_fetch * min(match.cpu, held) + self._storage_fetch * min(match.storage, held)
