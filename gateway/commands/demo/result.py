"""The result of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Result:
    """``prompt_tokens``, ``cached_tokens``: from the engines' counters. ``ttfts``: in seconds, of the requests that had
    output. ``seconds``: the duration of the run."""

    name: str
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    ttfts: tuple[float, ...]
    seconds: float
    first_error: str = ""

    @property
    def cached_share(self) -> float:
        """0..1"""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def ttft(self) -> tuple[float, ...]:
        """Seconds at each of ``QUANTILES``."""
        return tuple(quantile(self.ttfts, q) for q in QUANTILES)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "requests": self.requests,
            "errors": self.errors,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "cached_share": round(self.cached_share, 4),
            **{f"ttft_p{q * 100:g}": round(value, 4) for q, value in zip(QUANTILES, self.ttft, strict=True)},
            "seconds": round(self.seconds, 2),
        }


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a fraction ``q`` of ``values`` does not exceed (nearest rank); NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
