"""The filter ``utilization``.

What it does
    Keeps endpoints of which no figure is above its limit:

    - ``requests``: requests in flight there, by the ledger, others' included;
    - ``running`` and ``waiting``: requests that the engine computes, or has not begun, by its last scrape;
    - ``kv``: the share of its KV memory that live requests use, by its last scrape.

    What was never scraped counts as 0.

    Source: llm-d's ``utilization-filter``, whose ``active-requests`` counts no other clients' requests.

Scheduling intent
    A safety limit below which other plugins choose freely: an engine that is beyond it is no choice, however much of
    the prompt it holds. With ``fallback`` it never refuses a request.

Inputs
    ``load.requests``, ``load.foreign_requests``; ``metrics.running``, ``metrics.waiting``, ``metrics.kv_usage``.

Parameters
    ``requests``, ``running``, ``waiting``, ``kv`` (default null: no limit): the most at which an endpoint stays; one at
    least is required. ``kv`` is in 0..1.
    ``fallback`` (default ``false``): keep all endpoints where none stays.

Example
    ``plugins: [{name: spare, type: utilization, parameters: {waiting: 5, kv: 0.9, fallback: true}}]``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request

FIGURES: Mapping[str, Callable[[Endpoint], float]] = {
    "requests": lambda endpoint: endpoint.load.requests + endpoint.load.foreign_requests,
    "running": lambda endpoint: endpoint.metrics.running,
    "waiting": lambda endpoint: endpoint.metrics.waiting,
    "kv": lambda endpoint: endpoint.metrics.kv_usage,
}


class Utilization:
    """Endpoints that are not too busy."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        requests: float | None = None
        running: float | None = None
        waiting: float | None = None
        kv: float | None = None
        fallback: bool = False

        def __post_init__(self) -> None:
            if not self.limits:
                raise ValueError(f"one of {', '.join(FIGURES)} must be given")
            for name, most in self.limits.items():
                if not most >= 0:
                    raise ValueError(f"{name} must be at least 0")
            if self.kv is not None and not self.kv <= 1:
                raise ValueError("kv must be a share, in 0..1")

        @property
        def limits(self) -> dict[str, float]:
            return {name: most for name in FIGURES if (most := getattr(self, name)) is not None}

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._limits = [(FIGURES[name], most) for name, most in parameters.limits.items()]
        self._fallback = parameters.fallback

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        kept = [one for one in endpoints if all(figure(one) <= most for figure, most in self._limits)]
        return kept if kept or not self._fallback else endpoints
