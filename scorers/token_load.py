"""The scorer ``token-load``.

What it does
    1 - tokens / ``threshold``, tokens being the prompt tokens that the endpoint has yet to compute, this request's
    included: 1 is nothing to compute, 0 is ``threshold`` or more.

    Source: llm-d's ``token-load-scorer`` (v0.8 and later), its default ``queueThresholdTokens``. In flight are uncached
    prompt tokens only, and they are released at the first token: what the ledger counts.

Scheduling intent
    The one load scorer behind the filter ``prefix-affinity`` ("sticky until saturated"). Counting tokens sees what
    counting requests does not; counting the request's own is what still prefers a holder where the filter keeps all.
    Its scores are near 1 and near each other: blended with other scorers it would hardly be heard.

Inputs
    ``matches`` (expected hit), ``prompt_tokens``; ``load.prefill_tokens``.

Parameters
    ``threshold`` (default 4194304): tokens whose score is 0.

Example
    ``plugins: [{name: tokens, type: token-load}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class TokenLoad:
    """Fewer prompt tokens to compute are better."""

    compares_load = True

    @dataclass(frozen=True, slots=True)
    class Parameters:
        threshold: int = 4_194_304

        def __post_init__(self) -> None:
            if self.threshold < 1:
                raise ValueError("threshold must be at least 1 token")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._threshold = parameters.threshold

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        threshold = self._threshold
        return [
            1.0 - min(threshold, endpoint.load.prefill_tokens + request.new_tokens(endpoint)) / threshold
            for endpoint in endpoints
        ]
