"""The scorer ``dynamo-cost``.

What it does
    NVIDIA Dynamo's KV router, in blocks of ``block_size`` tokens:

        raw(p)    = prefill blocks queued on p + blocks of this prompt
        credit(p) = overlap_credit / (1 + decay * excess(p)) * blocks held on GPU
                    + host_credit * blocks held on CPU + disk_credit * blocks held in storage
        excess(p) = (prefill blocks queued on p - the least queued on any candidate) / blocks of this prompt
        cost(p)   = prefill_scale * max(0, raw(p) - credit(p)) + resident blocks on p + blocks of this prompt
                    + request_weight * requests on p

    1 is a cost of nothing, 1/2 one of ``half`` blocks: score = 1 / (1 + cost / half). With a ``temperature`` the scores
    are drawn so that the picker ``max-score`` chooses p with Dynamo's probability, the softmax of
    -cost(p) / ((dearest - cheapest) * temperature); alone in its profile only.

    Source: Dynamo 1.6, lib/kv-router (scheduling/selector.rs). Its old ``overlap_score_weight`` is ``prefill_scale``.
    Two differences: it counts a block that several requests share once (here each has its own), and its blocks are
    whole (here tokens / ``block_size``).

Scheduling intent
    For those who come from Dynamo, and to compare. A resident block costs as much as one to be computed, which
    underrates cache hits on long prompts: a ``prefill_scale`` of 6 gives back much of it.

Inputs
    ``matches`` (by tier), ``prompt_tokens``; ``load``.

Parameters
    ``prefill_scale`` (default 1.0): weight of prefill blocks against resident ones.
    ``overlap_credit`` (default 1.0), ``host_credit`` (default 0.75), ``disk_credit`` (default 0.25): share of a block
    that is saved where it is held on GPU, CPU or in storage, in 0..1.
    ``decay`` (default 0.0): how fast the GPU's credit shrinks where more prefill is queued than elsewhere.
    ``request_weight`` (default 0.0): blocks that a request in flight counts as.
    ``temperature`` (default 0.0): 0 always takes the cheapest, 1 hardly prefers it.
    ``block_size`` (default 16): tokens.
    ``half`` (default 4096.0): blocks whose score is 1/2: 64k tokens. Matters only in a blend.

Example
    ``plugins: [{name: dynamo, type: dynamo-cost, parameters: {prefill_scale: 6}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from gateway.framework import Context, Endpoint, Request


class DynamoCost:
    """Blocks to compute and blocks resident; fewer are better."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        prefill_scale: float = 1.0
        overlap_credit: float = 1.0
        host_credit: float = 0.75
        disk_credit: float = 0.25
        decay: float = 0.0
        request_weight: float = 0.0
        temperature: float = 0.0
        block_size: int = 16
        half: float = 4096.0

        def __post_init__(self) -> None:
            for name in ("overlap_credit", "host_credit", "disk_credit"):
                if not 0 <= getattr(self, name) <= 1:
                    raise ValueError(f"{name} must be in 0..1")
            for name in ("prefill_scale", "decay", "request_weight", "temperature"):
                if not getattr(self, name) >= 0:
                    raise ValueError(f"{name} must be at least 0")
            if self.block_size < 1:
                raise ValueError("block_size must be at least 1 token")
            if not self.half > 0:
                raise ValueError("half must be above 0 blocks")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._parameters = parameters
        self._random = context.random

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        costs = self.costs(request, endpoints)
        if self._parameters.temperature > 0:
            return self._drawn(costs)
        half = self._parameters.half
        return [half / (half + cost) for cost in costs]

    def costs(self, request: Request, endpoints: Sequence[Endpoint]) -> list[float]:
        """In blocks, of each endpoint."""
        it, prompt = self._parameters, max(1, request.prompt_tokens)
        queued = [endpoint.load.prefill_tokens for endpoint in endpoints]
        least = min(queued, default=0)
        costs = []
        for endpoint, waiting in zip(endpoints, queued, strict=True):
            load, match = endpoint.load, request.matches[endpoint.slot]
            overlap = it.overlap_credit / (1.0 + it.decay * (waiting - least) / prompt)
            credit = overlap * match.gpu + it.host_credit * match.cpu + it.disk_credit * match.storage
            resident = load.kv_tokens + load.foreign_kv_tokens + prompt
            blocks = (it.prefill_scale * max(0.0, waiting + prompt - credit) + resident) / it.block_size
            costs.append(blocks + it.request_weight * (load.requests + load.foreign_requests))
        return costs

    def _drawn(self, costs: Sequence[float]) -> list[float]:
        """Of exponential times with these rates the first is p's with the probability rate(p) / sum of rates."""
        if not costs:
            return []
        cheapest, dearest = min(costs), max(costs)
        spread = (dearest - cheapest) * self._parameters.temperature
        rates = [exp(-min((cost - cheapest) / spread, 700.0)) if spread > 0 else 1.0 for cost in costs]
        return [1.0 / (1.0 + self._random.expovariate(1.0) / rate) for rate in rates]
