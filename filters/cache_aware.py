"""The filter ``cache-aware``.

What it does
    SGLang's router, in three cases. Kept is:

    - unbalanced, that is max - min > ``balance_abs`` and max > ``balance_rel`` * min, in requests in flight over the
      candidates: who has the fewest requests;
    - else, if the best match is more than ``threshold`` of the prompt: who has the best match;
    - else: who has the smallest tree (``cold: smallest-tree``), or the fewest requests (``cold: least-load``).

    An endpoint's tree is the tokens that were sent there and were not held there, up to ``tree_tokens``.

    Source: ``cache_aware`` of sglang-router 0.3, SMG and vllm-router (whose default it is): threshold 0.3, 64, 1.5.
    Theirs match the prompt's characters against a tree of what they sent; here the match is of the cache index, and
    what an engine has evicted is no match.

Scheduling intent
    For those who come from these routers, and to compare. With 10 to 20 requests on an endpoint the default of 64 never
    balances anything: lower ``balance_abs`` to 8.

Inputs
    ``matches``, ``prompt_tokens``; ``load.requests``; the plans made. It leaves equals to the scorers and the picker:
    any will do. What it remembers belongs to the instance: give each profile its own.

Parameters
    ``threshold`` (default 0.3): share of the prompt, in 0..1.
    ``balance_abs`` (default 64): requests.
    ``balance_rel`` (default 1.5): times, at least 1.
    ``cold`` (default ``smallest-tree``): who gets what nobody holds; ``least-load`` is what later versions of SMG do.
    ``tree_tokens`` (default 16777216): tokens at which a tree stops growing: their 67,108,864 characters.

Example
    ``plugins: [{name: sglang, type: cache-aware, parameters: {balance_abs: 8}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.framework import Context, Endpoint, Plan, Request

REMEMBERED = 4096
"""Trees; beyond it the older half is forgotten: names of endpoints that are gone must not pile up."""


class CacheAware:
    """Balance if unbalanced, else the cache, else the smallest tree."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        threshold: float = 0.3
        balance_abs: int = 64
        balance_rel: float = 1.5
        cold: Literal["smallest-tree", "least-load"] = "smallest-tree"
        tree_tokens: int = 16_777_216

        def __post_init__(self) -> None:
            if not 0 <= self.threshold <= 1:
                raise ValueError("threshold must be in 0..1")
            if self.balance_abs < 0:
                raise ValueError("balance_abs must be at least 0 requests")
            if not self.balance_rel >= 1:
                raise ValueError("balance_rel must be at least 1")
            if self.tree_tokens < 1:
                raise ValueError("tree_tokens must be at least 1")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._parameters = parameters
        self._trees: dict[tuple[str, str], int] = {}  # (model, endpoint) -> tokens; insertion order is age of use

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        it = self._parameters
        requests = [endpoint.load.requests for endpoint in endpoints]
        if not requests:
            return endpoints
        fewest, most = min(requests), max(requests)
        if most - fewest > it.balance_abs and most > it.balance_rel * fewest:
            return _where(endpoints, requests, fewest)
        held = [request.matches[endpoint.slot].tokens for endpoint in endpoints]
        if (best := max(held)) > it.threshold * request.prompt_tokens:
            return _where(endpoints, held, best)
        if it.cold == "least-load":
            return _where(endpoints, requests, fewest)
        trees = [self._trees.get((request.model.name, endpoint.name), 0) for endpoint in endpoints]
        return _where(endpoints, trees, min(trees))

    def on_placed(self, request: Request, plan: Plan, /) -> None:
        trees = self._trees
        for endpoint in [leg.endpoint for leg in plan.legs]:
            key = request.model.name, endpoint.name
            tokens = trees.pop(key, 0) + max(0, request.prompt_tokens - request.matches[endpoint.slot].tokens)
            trees[key] = min(self._parameters.tree_tokens, tokens)
        if len(trees) > REMEMBERED:
            for key in list(trees)[: REMEMBERED // 2]:
                del trees[key]


def _where(endpoints: Sequence[Endpoint], figures: Sequence[int], wanted: int) -> list[Endpoint]:
    return [endpoint for endpoint, figure in zip(endpoints, figures, strict=True) if figure == wanted]
