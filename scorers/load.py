"""The scorer ``load``.

What it does
    1 - load: 1 is an idle endpoint, 1/2 one that is as loaded as ``requests`` running requests, or as ``seconds`` of
    queued prefill, or half of each. Load is x / (1 + x) with x = running / requests + queued prefill / seconds, so it
    comes near 1 and never reaches it: of two overloaded endpoints the less loaded one still scores higher.

Scheduling intent
    Balance, as the load term of the classic endpoint-picker blend (docs/examples/epp-weights.yaml). Unlike
    ``active-requests`` it sees that one long prompt is more work than many short ones.

Inputs
    ``load`` (the ledger: ours at once, others' from scrapes) and ``cost`` (seconds of the queued prefill).

Parameters
    ``requests`` (default 16): running requests that count as a load of 1/2: midway, by ratio, between one and vLLM's
    limit of 256.
    ``seconds`` (default 1.0): queued prefill that counts as a load of 1/2: what a user notices before the first token.

Example
    ``plugins: [{name: load, type: load}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class LoadScorer:
    """1 - load."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        requests: float = 16.0
        seconds: float = 1.0

        def __post_init__(self) -> None:
            if not self.requests > 0:
                raise ValueError("requests must be above 0")
            if not self.seconds > 0:
                raise ValueError("seconds must be above 0")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._requests = parameters.requests
        self._seconds = parameters.seconds

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        scores = []
        for endpoint in endpoints:
            load = endpoint.load
            x = (load.requests + load.foreign_requests) / self._requests
            if queued := load.prefill_tokens:
                x += endpoint.cost.scalars.prefill_seconds(queued) / self._seconds
            scores.append(1.0 / (1.0 + x))
        return scores
