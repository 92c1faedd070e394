"""The scorer ``active-requests``.

What it does
    1 / (1 + n / half), n requests in flight: 1 is an idle endpoint, 1/2 one with ``half`` requests.

Scheduling intent
    Balance by count alone, for similar requests. For different requests use ``placement-cost`` or ``load``: a count
    does not see that one prompt has a hundred times the tokens of another.

Inputs
    ``load.requests`` (ours, from placement to settle) and ``load.foreign_requests``.

Parameters
    ``half`` (default 16): requests whose score is 1/2: midway, by ratio, between one request and vLLM's limit of 256.

Example
    ``plugins: [{name: active, type: active-requests, parameters: {half: 32}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class ActiveRequests:
    """Fewer requests in flight are better."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        half: float = 16.0

        def __post_init__(self) -> None:
            if not self.half > 0:
                raise ValueError("half must be above 0 requests")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._half = parameters.half

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        half = self._half
        return [half / (half + endpoint.load.requests + endpoint.load.foreign_requests) for endpoint in endpoints]
