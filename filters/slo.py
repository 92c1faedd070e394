"""The filter ``slo``.

What it does
    Keeps the endpoints that are predicted to meet the request's objectives, if any does; else all. A request without
    objectives keeps all.

    - TTFT: what has passed since the request arrived, what waits at the gateway to be placed there before it, and the
      predicted time to its first token there.
    - TPOT: the predicted decode step there, with this request in the batch.

    ``margin`` times the prediction must be within the objective.

    Source: the tiers of llm-d's ``slo-headroom-tier-filter``, with the fitted cost model in the place of its predictor.

Scheduling intent
    Objectives as a rule, so that the scorers choose among the endpoints that meet them: a cache hit does not win on an
    endpoint that would be late. Where all would be, what is best still serves.

Inputs
    ``slo``, ``arrived``, ``matches``, ``prompt_tokens`` and ``ahead`` of the request; ``cost`` and ``load``.

Parameters
    ``margin`` (default 1.0): above 1 stays clear of the limit, below 1 takes chances.

Example
    ``plugins: [{name: slo, type: slo, parameters: {margin: 1.2}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import GENERATES, Context, Endpoint, Request


class SloFilter:
    """Endpoints that would answer in time."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        margin: float = 1.0

        def __post_init__(self) -> None:
            if not self.margin > 0:
                raise ValueError("margin must be above 0")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._margin = parameters.margin
        self._clock = context.clock

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        slo = request.slo
        if slo is None:
            return endpoints
        kept, now = endpoints, self._clock.monotonic()
        if slo.ttft is not None:
            left = (slo.ttft - (now - request.arrived)) / self._margin
            kept = [endpoint for endpoint in kept if _ttft(request, endpoint, now) <= left]
        if slo.tpot is not None and request.kind in GENERATES:
            most = slo.tpot / self._margin
            kept = [endpoint for endpoint in kept if _tpot(request, endpoint, now) <= most]
        return kept if 0 < len(kept) < len(endpoints) else endpoints


def _ttft(request: Request, endpoint: Endpoint, now: float) -> float:
    sums, match = endpoint.load.sums(now), request.matches[endpoint.slot]
    first = endpoint.cost.scalars.first_token(sums, match, request.prompt_tokens)
    return first.seconds + request.ahead.get(endpoint.slot, 0.0)


def _tpot(request: Request, endpoint: Endpoint, now: float) -> float:
    """With the request in the batch."""
    running, _, _, _, kv_tokens, _ = endpoint.load.sums(now)
    return endpoint.cost.scalars.step_seconds(running + 1, kv_tokens + request.prompt_tokens)
