"""The scorer ``kv-cache-utilization``.

What it does
    1 - the fraction of the KV cache that live requests use, as the engine's last scrape said: 1 is an empty cache, 0 a
    full one.

Scheduling intent
    Balance of memory as the engine sees it: an engine without free blocks preempts requests and computes them again.
    ``kv-memory`` says the same from the ledger, without the scrape's delay.

Inputs
    ``metrics.kv_usage``. An endpoint never scraped is judged by the ledger: ``load.kv_tokens`` of ``capacity``.

Parameters
    ``capacity`` (default 400000): tokens, of an endpoint that was never scraped: a 70B model on four H100.

Example
    ``plugins: [{name: kv, type: kv-cache-utilization}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class KvCacheUtilization:
    """More free KV memory, by the engine's account, is better."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        capacity: int = 400_000

        def __post_init__(self) -> None:
            if self.capacity < 1:
                raise ValueError("capacity must be at least 1 token")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._capacity = parameters.capacity

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        return [min(1.0, max(0.0, 1.0 - self._usage(endpoint))) for endpoint in endpoints]

    def _usage(self, endpoint: Endpoint) -> float:
        if endpoint.metrics.at is not None:
            return endpoint.metrics.kv_usage
        return endpoint.load.kv_tokens / self._capacity  # its own is not known either: a scrape tells it
