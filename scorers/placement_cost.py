"""The scorer ``placement-cost``, the default.

What it does
    Predicts, in seconds, what the request would cost on each endpoint: the wait for its own first token, what its
    prefill adds to the answers that run there, and what its own answer takes beside them:

        cost(p) = first token(p) + planned(p) + lam * stall(p) + lam * expected output * step(p)
                  + reuse * full(p) * prefill(p)
        stall(p) = prefill(p) * running(p) * (1 + share(p))     running(p) at most 100 while anything waits
        share(p) = the part of the last 2 s that prompts took on p, at most 1/2
        step(p) = step + step_request * running(p) + kv_token * kv tokens(p)
        full(p) = the share of p's KV memory that keeps something; 1 where that is not known

    ``first token`` is the one formula of it (``gateway.framework.cost``): overhead, queued prompts, the prefill of what
    p does not hold, fetching what it holds below the GPU, and what the running batch adds. ``planned``: work that waits
    at the gateway for p, and would be placed there first (``models[].queue``).

    1 is a cost of nothing, 1/2 a cost of ``second`` seconds: score = 1 / (1 + cost / second). Absolute: a candidate
    more or less changes no other's score.

    ``explain`` returns the terms: ``overhead``, ``queued``, ``prefill``, ``fetch``, ``batch`` (the first token's
    five), ``planned``, ``stall`` (of the answers that run there), ``decode`` (the own one's), ``displaced`` (by reuse).

Scheduling intent
    Cache hits, queues and running batches in one unit, so that they need no weights between them: a prefix is worth
    the seconds its prefill takes, and a request goes elsewhere once the wait there is shorter than that by more than
    the harm of a second copy: in a cache that is full, each new token pushes another one out, which whoever asks for
    it next has to compute again. So what is new goes, of engines that are alike, to the one with the most room: what
    they hold grows evenly, and none has to forget what another had room for. What lies in the CPU's memory or in
    storage is worth less by what fetching it takes. Of engines that are not alike, long answers go to the faster.

Inputs
    ``matches`` (expected hit, by tier; room), ``prompt_tokens``, ``expected_output``, ``slo``, ``ahead``; ``load`` (the
    ledger: our own work at once, others' from scrapes), ``cost`` (the endpoint's cost model), ``metrics.kv_capacity``.

Parameters
    ``lam`` (default null): weight of a second between tokens, the own answer's and those that are stalled, against a
    second before the own first token. null: as the request's objectives say, where it has both, else 0.5
    (``gateway.framework.weight``).
    ``reuse`` (default 0.5): how likely what is pushed out would have been asked for again (as Preble's eviction cost,
    ICLR 2025). On three vLLM engines whose caches held 30 groups of chats only together, the share of what a perfect
    split serves from cache was 0.965 to 0.988 with 0, 0.990 to 0.995 with 0.3, 1.00 with 1.
    ``second`` (default 1.0): seconds whose score is 1/2. Matters only where this scorer is blended with others.

Example
    ``plugins: [{name: cost, type: placement-cost, parameters: {lam: 0.1}}]``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

from gateway.framework import (
    GENERATES,
    LATELY,
    MOST_STALLED,
    NO_MATCH,
    USUAL_DECODING_WEIGHT,
    Context,
    Endpoint,
    Request,
    decoding_weight,
    stall_seconds,
)

MOST_DISTURBED = 100.0
"""Running requests that a stall counts for at most, while anything waits at the gateway. Each engine then has as many
as it may have, whoever is placed there: that one has fewer, since they are longer, is no reason to wait for it. Without
it, chats beside many short prompts gathered at the two of eight engines that had the fewest requests: 86 % of the chats
met their objectives instead of 99 % (``kvgate replay --tenants greedy-many`` at 145 requests/s). With 50 and less, long
documents do not keep away any more from the engines that have the chats (``greedy-long``)."""


class PlacementCost:
    """Seconds, as 1 / (1 + cost / second)."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        lam: float | None = field(default=None, metadata={"usual": USUAL_DECODING_WEIGHT})
        reuse: float = field(default=0.5, metadata={"evicts": True})
        second: float = field(default=1.0, metadata={"blended": True})

        def __post_init__(self) -> None:
            if self.lam is not None and not self.lam >= 0:
                raise ValueError("lam must be at least 0")
            if not 0 <= self.reuse <= 1:
                raise ValueError("reuse must be in 0..1")
            if not self.second > 0:
                raise ValueError("second must be above 0 seconds")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._lam = parameters.lam
        self._reuse = parameters.reuse
        self._second = parameters.second
        self._clock = context.clock

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        # The sum of what ``explain`` returns, of which ``rates`` has what no request decides. It runs for each
        # candidate of each request: so it is one loop without calls, but for those whose load has changed since then.
        lam = self._lam
        if lam is None:
            lam = USUAL_DECODING_WEIGHT if request.slo is None else decoding_weight(request)
        second, reuse, most_stalled = self._second, self._reuse, MOST_STALLED
        full = 1 + reuse  # where nothing is known to be empty
        find, rooms, ahead = request.matches.get, request.matches.room, request.ahead
        prompt = float(request.prompt_tokens)  # sums of floats are the quicker ones
        decoding = lam * request.expected_output if request.kind in GENERATES else 0.0
        now, scores = self._clock.monotonic(), []
        for endpoint in endpoints:
            rates = endpoint.load.rates
            if now >= rates[0]:
                rates = endpoint.load.rates_at(now)
            _, cost, new_token, step, running, token, quadratic, waiting, queued, begun, pace, most, stalled, at = rates
            match = find(endpoint.slot, NO_MATCH)
            held = match.expected_hit
            new = prompt - held if prompt > held else 1.0
            share = full
            if rooms and (room := rooms.get(endpoint.slot)):
                left, size = room - waiting - new / 2, endpoint.metrics.kv_capacity
                if left > 0 and size > 0:
                    share -= reuse * min(1.0, left / size)
            if stalled:
                stalled *= exp((at - now) / LATELY)
                if stalled > most_stalled:
                    stalled = most_stalled
            if ahead:
                cost += ahead.get(endpoint.slot, 0.0)
                if running > MOST_DISTURBED:
                    running = MOST_DISTURBED
            cost += decoding * step + new * (
                new_token + (token + quadratic * (prompt - new / 2)) * (share + lam * running * (1.0 + stalled))
            )
            if queued:
                done = (now - begun) * pace
                if done > most:
                    done = most
                if queued > done:
                    cost += queued - done
            if match.gpu < held:
                cost += endpoint.cost.scalars.fetch_seconds(match)
            scores.append(second / (second + cost))
        return scores

    def explain(self, request: Request, endpoint: Endpoint, /) -> Mapping[str, float]:
        """The terms of the cost, in seconds: their sum is what the score is made of."""
        scalars, sums = endpoint.cost.scalars, endpoint.load.sums(self._clock.monotonic())
        lam = decoding_weight(request) if self._lam is None else self._lam
        running, waiting, _, _, kv_tokens, stalled = sums
        first = scalars.first_token(sums, request.matches[endpoint.slot], request.prompt_tokens)
        # What is stored in free room pushes out nothing now, but takes room away from what comes; the less is left, the
        # likelier it is that this will be missed.
        room = request.matches.room.get(endpoint.slot, 0) - waiting - request.new_tokens(endpoint) / 2
        size = endpoint.metrics.kv_capacity
        spared = self._reuse * min(1.0, room / size) if room > 0 and size > 0 else 0.0
        output = request.expected_output if request.kind in GENERATES else 0.0
        disturbed = min(running, MOST_DISTURBED) if request.ahead else running
        return {
            **first._asdict(),
            "planned": request.ahead.get(endpoint.slot, 0.0),
            "stall": lam * stall_seconds(first.prefill, disturbed, stalled),
            "decode": lam * output * scalars.step_seconds(running, kv_tokens),
            "displaced": (self._reuse - spared) * first.prefill,
        }
