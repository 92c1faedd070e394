"""What a request costs on one endpoint alone, and on a pair of them, in seconds.

    alone(d)   = first(d) + harm(d) + decode(d)
    pair(p, d) = max(first(p) + leg, queued(d)) + moving(p, d) + step(d) + harm(p) + decode(d)

    first  = overhead + queued prefill + own prefill + fetch from slower tiers + what the running batch adds to them
    harm   = lam * own prefill * running + reuse * own prefill
    decode = lam * expected output * c_kv * resident tokens
    moving = tokens that d does not hold * bytes of a token * seconds of a byte

The terms are those of the scorer ``placement-cost`` (whose docstring says why), for two endpoints: the rule of
Mooncake's Conductor for who computes (Qin et al., FAST 2025, algorithm 1: the least of queue, prefill and transfer),
and with it the stall that the prefill would be for the answers of who decodes. So what a second leg is worth depends on
how much runs where the prompt would be computed, and not on the prompt's length alone.

- Nobody is answered by an endpoint of the role prefill: there no running batch is slowed, and none slows.
- The second leg waits for what is queued at its endpoint, which goes on while the first is computed.
- What a prompt pushes out of a cache (``reuse``) is charged where it is computed, once: that is where others look for
  its prefix. The KV of the answer lies with who decodes in either case.

Pure: no clock, no chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from gateway.framework import GENERATES, NO_MATCH, Endpoint, Match, Moved, Request, Role, Scalars, Sums

STEP_TOKENS = 8192
"""Prompt tokens of one step: vLLM's default ``max_num_batched_tokens`` on an H100."""

CPU_FETCH = 1.6e-6
STORAGE_FETCH = 25.6e-6
"""Seconds a token, as ``placement-cost`` has them: of 320 KB over four links of 50 GB/s, and over one of 100 Gbit/s."""

KV_BYTES = 327_680
"""Of one token, until an engine has shown its own: Llama 3 70B in BF16, 80 layers of 8 heads of 128, keys and values.
Small models have less (Llama 3 8B 131,072), so that before the first hand-over moving looks dearer than it is."""

MOST_KV_BYTES = 2**24
"""Of one token: no model's is larger; what looks so are prompts of a few tokens in whole blocks."""

PRIOR_TRANSFERS = 1.0
"""Transfers as long as those seen that the configured rate weighs as much as."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """``lam``, ``reuse``: weights, as in ``placement-cost``. ``leg``: seconds of a second leg beyond its work.

    ``kv_bytes``: of a token; None: as learned, else ``KV_BYTES``. ``rate``: bytes a second into one endpoint, until its
    engine has shown its own. ``workers``: of an engine, which move their parts at once and add their times up.
    """

    lam: float
    reuse: float
    leg: float
    kv_bytes: int | None
    rate: float
    workers: int


class Computing(NamedTuple):
    """A prompt computed on one endpoint. Seconds. ``first``: until its first token. ``harm``: to others, weighted.
    ``queued``: of ``first``, what is queued there already. ``sends``: what it has moved lately."""

    first: float
    harm: float
    queued: float
    sends: Moved


class Answering(NamedTuple):
    """A request answered by one endpoint, whoever computes its prompt. Seconds.

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
        running, waiting, attention, done, kv_tokens = sums
        match = request.matches.get(endpoint.slot, NO_MATCH)
        new = request.new_tokens(endpoint)
        queued = max(0.0, waiting * cost.prefill_token + cost.prefill_quadratic * attention - done)
        own = new * (cost.prefill_token + cost.prefill_quadratic * (request.prompt_tokens - new / 2))
        first = cost.overhead + queued + own + _fetch(match)
        if endpoint.role is Role.PREFILL:
            running = 0.0
        else:
            first += (1 + (waiting + new) / STEP_TOKENS) * (cost.step_request * running + cost.kv_token * kv_tokens)
        return Computing(first, own * (self._lam * running + self._reuse), queued, endpoint.metrics.moved_lately)

    def answering(self, request: Request, endpoint: Endpoint, now: float) -> Answering:
        """``now``: Clock.monotonic()."""
        cost, sums = endpoint.cost.scalars, endpoint.load.sums(now)
        running, _, _, _, kv_tokens = sums
        output = request.expected_output if request.kind in GENERATES else 0.0
        decode = self._lam * output * cost.kv_token * kv_tokens
        step = cost.step + cost.step_request * running + cost.kv_token * kv_tokens
        computing = self._computing(request, endpoint, sums, cost)
        lately = endpoint.metrics.moved_lately
        moved_bytes = request.new_tokens(endpoint) * self._bytes(lately)
        return Answering(
            alone=computing.first + computing.harm + decode,
            queued=computing.queued,
            rest=step + decode + _fetch(request.matches.get(endpoint.slot, NO_MATCH)),
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
        """What every pair with it costs, whoever computes: where that is not less, nobody needs to be asked."""
        return max(self._leg, answering.queued) + (answering.moving or 0.0) + answering.rest

    def _bytes(self, lately: Moved) -> float:
        """Of one token."""
        if self._kv_bytes is not None:
            return self._kv_bytes
        if lately.bytes > 0 and lately.tokens > 0:
            return min(lately.bytes / lately.tokens, MOST_KV_BYTES)
        return KV_BYTES

    def _seconds(self, moved: Moved) -> float:
        """Of one byte: as seen, and where that is long ago or of few transfers, more and more as configured."""
        if not moved.bytes > 0:
            return self._usual
        prior = PRIOR_TRANSFERS * moved.bytes / max(moved.transfers, 1e-9)
        return (moved.seconds / self._workers + prior * self._usual) / (moved.bytes + prior)


def known(seconds: float) -> bool:
    return isfinite(seconds) and seconds >= 0


def _fetch(match: Match) -> float:
    """What is held, but not on the GPU."""
    held = match.expected_hit
    if match.gpu >= held:
        return 0.0
    return CPU_FETCH * min(match.cpu, held) + STORAGE_FETCH * min(match.storage, held)
