"""The filter ``prefix-affinity``.

What it does
    Keeps the endpoints that hold at least ``threshold`` of the prompt ("sticky"). Keeps all of them where none does, or
    where the least loaded of the sticky ones has so much more prefill queued than the least loaded other that a first
    token would come more than ``penalty`` seconds later there: sticky until saturated.

    Source: llm-d's ``prefix-cache-affinity-filter`` with its ``prefillThroughput`` gate (v0.8 and later):
    estimated TTFT = tokens in flight / peak prefill throughput. Without ``tokens_per_second`` the seconds are those of
    the endpoint's own fitted cost model.

Scheduling intent
    Cache first, load second, without weights between them. Follow it with one scorer of load (``token-load``), and none
    of the prefix: that would keep the requests where the gate has just let them go from.

Inputs
    ``matches`` and ``prompt_tokens``; ``load.prefill_tokens`` and ``cost``.

Parameters
    ``threshold`` (default 0.8): share of the prompt, in 0..1; 0 keeps all.
    ``penalty`` (default 18.0): seconds; 0: the gate never opens.
    ``exploration`` (default 0.0): share of the requests, in 0..1, for which all are kept.
    ``tokens_per_second`` (default null): an endpoint's prefill speed, such as llm-d's 15928; null: as it is fitted.

Example
    ``plugins: [{name: sticky, type: prefix-affinity, parameters: {penalty: 5}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class PrefixAffinity:
    """Sticky until saturated."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        threshold: float = 0.8
        penalty: float = 18.0
        exploration: float = 0.0
        tokens_per_second: float | None = None

        def __post_init__(self) -> None:
            for name in ("threshold", "exploration"):
                if not 0 <= getattr(self, name) <= 1:
                    raise ValueError(f"{name} must be in 0..1")
            if not self.penalty >= 0:
                raise ValueError("penalty must be at least 0 seconds")
            if self.tokens_per_second is not None and not self.tokens_per_second > 0:
                raise ValueError("tokens_per_second must be above 0")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._parameters = parameters
        self._random = context.random

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        it, matches = self._parameters, request.matches
        if len(endpoints) < 2 or it.threshold <= 0 or request.prompt_tokens <= 0:
            return endpoints
        if it.exploration > 0 and self._random.random() < it.exploration:
            return endpoints
        least = it.threshold * request.prompt_tokens
        sticky = [endpoint for endpoint in endpoints if matches[endpoint.slot].tokens >= least]
        if not sticky or len(sticky) == len(endpoints):
            return endpoints
        if it.penalty > 0:
            others = [endpoint for endpoint in endpoints if matches[endpoint.slot].tokens < least]
            if self._wait(sticky) - self._wait(others) > it.penalty:
                return endpoints
        return sticky

    def _wait(self, endpoints: Sequence[Endpoint]) -> float:
        """Seconds of prefill queued on the least loaded."""
        speed = self._parameters.tokens_per_second
        if speed is not None:
            return min(endpoint.load.prefill_tokens for endpoint in endpoints) / speed
        return min(endpoint.cost.scalars.prefill_seconds(endpoint.load.prefill_tokens) for endpoint in endpoints)
