"""What a request costs on one endpoint alone, and on a pair of them, in seconds.

    alone(d)   = first(d) + harm(d) + decode(d)
    pair(p, d) = max(first(p) + leg, queued(d)) + moving(p, d) + step(d) + harm(p) + decode(d)

    first  = the time to a first token (``framework.cost``), behind what waits at the gateway to be placed there before
    queued = of that, what is queued at the endpoint and at the gateway
    harm   = lam * stall(own prefill, running) + reuse * own prefill
    decode = lam * expected output * (step + step_request * running + kv_token * resident tokens)
    moving = tokens that d does not hold * bytes of a token * seconds of a byte

The terms are those of the scorer ``placement-cost`` (whose docstring says why), for two endpoints: the rule of
Mooncake's Conductor for who computes (Qin et al., FAST 2025, algorithm 1: the least of queue, prefill and transfer),
and with it the stall that the prefill would be for the answers of who decodes. So what a second leg is worth depends on
how much runs where the prompt would be computed, and not on the prompt's length alone.

- Nobody is answered by an endpoint of the role prefill: there no running batch is slowed, and none slows (the latter by
  its cost model, whose ``step_request`` and ``kv_token`` are 0).
- The second leg waits for what is queued at its endpoint, which goes on while the first is computed.
- What a prompt pushes out of a cache (``reuse``) is charged where it is computed, once: that is where others look for
  its prefix. The KV of the answer lies with who decodes in either case.

Pure: no clock, no chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from gateway.framework import NO_MATCH, Endpoint, Request, Role, Scalars, decoding_weight, stall_seconds
from gateway.framework.cost import Sums
from gateway.framework.fleet import TransferStats

KV_BYTES = 327_680
"""Of one token, until an engine has shown its own: Llama 3 70B in BF16, 80 layers of 8 heads of 128, keys and values.
Small models have less (Llama 3 8B 131,072), so that before the first hand-over moving looks dearer than it is."""

MOST_KV_BYTES = 2**24
"""Of one token: no model's is larger; what looks so are prompts of a few tokens in whole blocks."""

PRIOR_TRANSFERS = 1.0
"""Transfers as long as those seen that the configured rate weighs as much as."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """``lam``, ``reuse``: weights, as in ``placement-cost``; ``lam`` None: by each request's objectives.
    ``leg``: seconds of a second leg beyond its work.

    ``kv_bytes``: of a token; None: as learned, else ``KV_BYTES``. ``rate``: bytes a second into one endpoint, until its
    engine has shown its own. ``workers``: of an engine, which move their parts at once and add their times up.
    """

    lam: float | None
    reuse: float
    leg: float
    kv_bytes: int | None
    rate: float
    workers: int


class Computing(NamedTuple):
    """A prompt computed on one endpoint. Seconds. ``first``: until its first token. ``harm``: to others, weighted.
    ``queued``: of ``first``, what is queued there already, and what waits at the gateway to be placed there before.
    ``sends``: what it has moved lately."""

    first: float
    harm: float
    queued: float
    sends: TransferStats


class Answering(NamedTuple):
    """The costs of a request that one endpoint decodes, wherever its prompt is computed. Seconds.

    ``alone``: it computes the prompt as well. ``queued``: until it can begin. ``rest``: what any pair with it costs
    beside the prefill, but for ``moving``; ``moving``: until the KV is there; None: as its partner has it.
    ``moved_bytes``: of that KV.
    """

    alone: float
    queued: float
    rest: float
    moving: float | None
    moved_bytes: float


class SplitCost:
    def __init__(self, assumptions: Assumptions) -> None:
        self._lam = assumptions.lam
        self._reuse = assumptions.reuse
        self._leg = assumptions.leg
        self._kv_bytes = assumptions.kv_bytes
        self._workers = assumptions.workers
        self._usual = 1 / assumptions.rate

    def computing(self, request: Request, endpoint: Endpoint, now: float) -> Computing:
        """``now``: Clock.monotonic()."""
        return self._computing(request, endpoint, endpoint.load.sums(now), endpoint.cost.scalars)

    def _computing(self, request: Request, endpoint: Endpoint, sums: Sums, cost: Scalars) -> Computing:
        match = request.matches.get(endpoint.slot, NO_MATCH)
        first = cost.first_token(sums, match, request.prompt_tokens)
        harm = self._reuse * first.prefill
        if endpoint.role is not Role.PREFILL:
            harm += self._weight(request) * stall_seconds(first.prefill, sums[0], sums[5])
        planned = request.ahead.get(endpoint.slot, 0.0)
        return Computing(first.seconds + planned, harm, first.queued + planned, endpoint.metrics.recent_transfers)

    def answering(self, request: Request, endpoint: Endpoint, now: float) -> Answering:
        """``now``: Clock.monotonic()."""
        cost, sums = endpoint.cost.scalars, endpoint.load.sums(now)
        running, _, _, _, kv_tokens, _ = sums
        output = request.expected_output
        step = cost.step_seconds(running, kv_tokens)
        decode = self._weight(request) * output * step
        computing = self._computing(request, endpoint, sums, cost)
        lately = endpoint.metrics.recent_transfers
        moved_bytes = request.new_tokens(endpoint) * self._bytes(lately)
        return Answering(
            alone=computing.first + computing.harm + decode,
            queued=computing.queued,
            rest=step + decode + cost.fetch_seconds(request.matches.get(endpoint.slot, NO_MATCH)),
            moving=moved_bytes * self._seconds(lately) if lately.bytes > 0 else None,
            moved_bytes=moved_bytes,
        )

    def pair(self, computing: Computing, answering: Answering) -> float:
        """Where who decodes pulls, its engine knows how fast that is; where who computes pushes, that one's does."""
        moving = answering.moving
        if moving is None:
            moving = answering.moved_bytes * self._seconds(computing.sends)
        begun = max(computing.first + self._leg, answering.queued)
        return begun + moving + answering.rest + computing.harm

    def at_least(self, answering: Answering) -> float:
        """The least cost of any pair with this decode endpoint. If that is not less than the best, no pair of it has to
        be compared."""
        return max(self._leg, answering.queued) + (answering.moving or 0.0) + answering.rest

    def _weight(self, request: Request) -> float:
        return decoding_weight(request) if self._lam is None else self._lam

    def _bytes(self, lately: TransferStats) -> float:
        """Of one token."""
        if self._kv_bytes is not None:
            return self._kv_bytes
        if lately.bytes > 0 and lately.tokens > 0:
            return min(lately.bytes / lately.tokens, MOST_KV_BYTES)
        return KV_BYTES

    def _seconds(self, transfers: TransferStats) -> float:
        """Of one byte: as seen, and where that is long ago or of few transfers, more and more as configured."""
        if not transfers.bytes > 0:
            return self._usual
        prior = PRIOR_TRANSFERS * transfers.bytes / max(transfers.count, 1e-9)
        return (transfers.seconds / self._workers + prior * self._usual) / (transfers.bytes + prior)


def known(seconds: float) -> bool:
    return isfinite(seconds) and seconds >= 0
