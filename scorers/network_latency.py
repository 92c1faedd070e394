"""The scorer ``network-latency``.

What it does
    1 / (1 + latency / scale): 1 is an engine that is no way off, 1/2 one whose round trip takes ``scale`` seconds.

Scheduling intent
    Prefers near engines where the fleet is spread over zones or regions, in a blend with scorers of load and cache.

Inputs
    ``engine.latency``: the measured round trip of its connections. Before the first measurement: 1/2, neither praised
    nor blamed.

Parameters
    ``scale`` (default 0.01): seconds whose score is 1/2: far above one data centre (under 1 ms), below another region
    (20 ms and more).

Example
    ``plugins: [{name: near, type: network-latency, parameters: {scale: 0.005}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request

UNKNOWN = 0.5


class NetworkLatency:
    """Nearer is better."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        scale: float = 0.01

        def __post_init__(self) -> None:
            if not self.scale > 0:
                raise ValueError("scale must be above 0 seconds")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._scale = parameters.scale

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        scale = self._scale
        return [
            UNKNOWN if (latency := endpoint.engine.latency) is None else scale / (scale + max(0.0, latency))
            for endpoint in endpoints
        ]
