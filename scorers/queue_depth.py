"""The scorer ``queue-depth``.

What it does
    1 / (1 + waiting / half): 1 where nothing waits, 1/2 where ``half`` requests do.

    Waiting is the larger of two views: what the engine's last scrape said, and our own requests' prompt tokens that it
    has not yet computed, ``request_tokens`` of them to a request. Not their sum: our requests are in both.

    ``relative``: llm-d's ``queue-scorer`` instead, (most waiting - waiting) / (most - least) over the candidates, 1 for
    all where they are equal. ``limit``: the straight line of llm-d's ``load-aware-scorer``, 1 - waiting / ``limit``, 0
    beyond; llm-d's own is half of that, which a weight can say.

Scheduling intent
    Balance. The scrape sees others' requests, but late; the ledger sees ours at once.

Inputs
    ``metrics.waiting``, ``load.prefill_tokens``. An endpoint never scraped is judged by the ledger alone.

Parameters
    ``half`` (default 4): waiting requests whose score is 1/2.
    ``request_tokens`` (default 2048): uncomputed prompt tokens that count as one request: a step of vLLM's default size
    takes four of them.
    ``relative`` (default ``false``): stretch the scores over the candidates. A difference of one request then weighs as
    much as one of a hundred: only to have what llm-d has.
    ``limit`` (default null): waiting requests from which the score is 0. Not together with ``relative``.

Example
    ``plugins: [{name: queue, type: queue-depth, parameters: {half: 8}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class QueueDepth:
    """Fewer waiting requests are better."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        half: float = 4.0
        request_tokens: int = 2048
        relative: bool = False
        limit: float | None = None

        def __post_init__(self) -> None:
            if not self.half > 0:
                raise ValueError("half must be above 0 requests")
            if self.request_tokens < 1:
                raise ValueError("request_tokens must be at least 1")
            if self.limit is not None and (self.relative or not self.limit > 0):
                raise ValueError("limit must be above 0 requests, and not together with relative")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._half = parameters.half
        self._request_tokens = parameters.request_tokens
        self._relative = parameters.relative
        self._limit = parameters.limit

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        half, size = self._half, self._request_tokens
        waiting = [max(endpoint.metrics.waiting, endpoint.load.prefill_tokens / size) for endpoint in endpoints]
        if (limit := self._limit) is not None:
            return [max(0.0, 1.0 - each / limit) for each in waiting]
        if not self._relative:
            return [half / (half + each) for each in waiting]
        least, most = min(waiting, default=0.0), max(waiting, default=0.0)
        if most == least:
            return [1.0] * len(waiting)
        return [(most - each) / (most - least) for each in waiting]
