"""The scorer ``lmetric``.

What it does
    LMetric's cost, the product of two counts without a parameter between them:

        cost(p) = (prefill tokens queued on p + new tokens of this request on p) * (requests on p + 1)

    1 is a cost of nothing, 1/2 one of ``half``: score = 1 / (1 + cost / half). The order is that of the cost, whatever
    ``half`` is.

    Source: LMetric (OSDI 2026, arXiv 2603.15202): argmin P-token x BS. The paper's text leaves open whether tokens that
    wait there already are in P-token; they are here, since a later reimplementation and our replay do better with them.
    llm-d's ``lmetric-scorer`` leaves them out and stretches the cost over the candidates (min-max).

Scheduling intent
    Cache hits and load in one figure that needs no model of the hardware. It has no feeling for what an answer
    costs against a prompt: where few long prefixes are shared by very many, it copies them everywhere.

Inputs
    ``matches`` (expected hit), ``prompt_tokens``; ``load``.

Parameters
    ``queued`` (default ``true``): count the prefill tokens that wait on the endpoint.
    ``half`` (default 65536): token-requests whose score is 1/2: a step of 8192 prompt tokens beside seven requests.
    Matters only where this scorer is blended with others.

Example
    ``plugins: [{name: lmetric, type: lmetric}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class LMetric:
    """Tokens to compute x requests beside them; less is better."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        queued: bool = True
        half: float = 65536.0

        def __post_init__(self) -> None:
            if not self.half > 0:
                raise ValueError("half must be above 0")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._queued = parameters.queued
        self._half = parameters.half

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        half, queued = self._half, self._queued
        scores = []
        for endpoint in endpoints:
            load = endpoint.load
            tokens = request.new_tokens(endpoint) + (load.prefill_tokens if queued else 0)
            scores.append(half / (half + tokens * (load.requests + load.foreign_requests + 1)))
        return scores
