"""The scorer ``kv-memory``.

What it does
    The fraction of the KV cache that is free: 1 is all of it, 0 none. Used is what our own requests have resident now
    (the ledger, at once) and what others have (from scrapes).

Scheduling intent
    Balance of memory without the scrape's delay. Tokens that requests share are counted for each of them, so that under
    shared prefixes it is a cautious figure.

Inputs
    ``load.kv_tokens``, ``load.foreign_kv_tokens``, ``metrics.kv_capacity``.

Parameters
    ``capacity`` (default 400000): tokens, where the engine does not report its own: a 70B model on four H100.

Example
    ``plugins: [{name: memory, type: kv-memory}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class KvMemory:
    """More free KV memory, by our own account, is better."""

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
        scores = []
        for endpoint in endpoints:
            load = endpoint.load
            used = (load.kv_tokens + load.foreign_kv_tokens) / (endpoint.metrics.kv_capacity or self._capacity)
            scores.append(max(0.0, 1.0 - used))
        return scores
