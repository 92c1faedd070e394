"""The filter ``aibrix-prefix``.

What it does
    AIBrix's prefix-cache strategy, by requests in flight over the candidates. Kept is:

    - if max - min > ``imbalance``: who has the fewest requests;
    - else, of those that hold something of the prompt and have at most mean + ``sigmas`` * sigma requests: who holds
      most of it, and of these who has the fewest requests;
    - else: who has the fewest requests.

    Source: AIBrix's gateway plugins, ``prefix_cache.go``: 8 and 1 in the code (16 and 2 in its README); sigma is over
    the candidates, divided by n.

Scheduling intent
    For those who come from AIBrix, and to compare: of the rules with thresholds it was the best one in simulation.

Inputs
    ``matches``; ``load.requests``. It leaves equals to the scorers and the picker: any will do.

Parameters
    ``imbalance`` (default 8): requests.
    ``sigmas`` (default 1.0): standard deviations above the mean.

Example
    ``plugins: [{name: aibrix, type: aibrix-prefix, parameters: {imbalance: 16, sigmas: 2}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from gateway.framework import Context, Endpoint, Request


class AibrixPrefix:
    """The best match among those that are not too busy."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        imbalance: int = 8
        sigmas: float = 1.0

        def __post_init__(self) -> None:
            if self.imbalance < 0:
                raise ValueError("imbalance must be at least 0 requests")
            if not self.sigmas >= 0:
                raise ValueError("sigmas must be at least 0")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._parameters = parameters

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        it = self._parameters
        if len(endpoints) < 2:
            return endpoints
        requests = [endpoint.load.requests for endpoint in endpoints]
        if max(requests) - min(requests) <= it.imbalance:
            mean = sum(requests) / len(requests)
            sigma = sqrt(sum((each - mean) ** 2 for each in requests) / len(requests))
            bound = mean + it.sigmas * sigma
            fit = [endpoint for endpoint, running in zip(endpoints, requests, strict=True) if running <= bound]
            held = [request.matches[endpoint.slot].tokens for endpoint in fit]
            if best := max(held, default=0):
                return _least([endpoint for endpoint, tokens in zip(fit, held, strict=True) if tokens == best])
        return _least(endpoints)


def _least(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    fewest = min(endpoint.load.requests for endpoint in endpoints)
    return [endpoint for endpoint in endpoints if endpoint.load.requests == fewest]
