"""The scorer ``active-requests``.

What it does
    1 / (1 + n / half), n requests in flight: 1 is an idle endpoint, 1/2 one with ``half`` requests.

    ``relative``: over the candidates instead, as llm-d's scorers have it. ``range``: (most - n) / (most - least), 1 for
    all where they are equal (its ``running-requests-size-scorer``, which counts what engines report as running).
    ``most``: 1 up to ``idle`` requests, beyond that ``busy`` x (most - n) / most (its ``active-request-scorer``, which
    counts no other clients' requests).

Scheduling intent
    Balance by count alone, for similar requests. For different requests use ``placement-cost`` or ``load``: a count
    does not see that one prompt has a hundred times the tokens of another.

Inputs
    ``load.requests`` (ours, from placement to settle) and ``load.foreign_requests``.

Parameters
    ``half`` (default 16): requests whose score is 1/2: midway, by ratio, between one request and vLLM's limit of 256.
    ``relative`` (default null): ``range`` or ``most``. A difference of one request then weighs as much as one of a
    hundred: only to have what llm-d has.
    ``idle`` (default 0), ``busy`` (default 1.0): of ``most``: requests up to which an endpoint counts as idle, and the
    most that one with more requests can score, in 0..1.

Example
    ``plugins: [{name: active, type: active-requests, parameters: {half: 32}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.framework import Context, Endpoint, Request


class ActiveRequests:
    """Fewer requests in flight are better."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        half: float = 16.0
        relative: Literal["range", "most"] | None = None
        idle: int = 0
        busy: float = 1.0

        def __post_init__(self) -> None:
            if not self.half > 0:
                raise ValueError("half must be above 0 requests")
            if self.idle < 0:
                raise ValueError("idle must be at least 0 requests")
            if not 0 <= self.busy <= 1:
                raise ValueError("busy must be in 0..1")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._parameters = parameters

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        it = self._parameters
        if it.relative is None:
            half = it.half
            return [half / (half + endpoint.load.requests + endpoint.load.foreign_requests) for endpoint in endpoints]
        counts = [endpoint.load.requests + endpoint.load.foreign_requests for endpoint in endpoints]
        least, most = min(counts, default=0.0), max(counts, default=0.0)
        if it.relative == "most":
            return [1.0 if count <= it.idle else it.busy * (most - count) / most for count in counts]
        if most == least:
            return [1.0] * len(counts)
        return [(most - count) / (most - least) for count in counts]
