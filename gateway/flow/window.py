"""How far each endpoint is to be trusted: a factor for its window, by first tokens against what was predicted of them.

    gradient = TOLERANCE * (predicted + SLACK) / observed, at least 1/2
    factor  += SMOOTHING * factor * (gradient - 1)          where the gradient is below 1
    factor  += SMOOTHING * GROWTH                           otherwise; within FLOOR..1

The ledger knows what we sent, and the cost model what it takes on the hardware that it has seen so far. What neither
knows shows in first tokens that come late: other traffic, a hot GPU, a neighbour on the machine. Gradient2 of Netflix's
concurrency-limits compares whole answers, whose time an LLM's output length decides; a first token's time is predicted
for each request, so that only what is unexpected counts. An endpoint that is as predicted has the factor 1, and one
that is so again returns to it within some dozens of answers. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from gateway.framework import Endpoint

TOLERANCE = 1.5
"""A first token may take so many times what was predicted: with 1 the factor would sink by chance alone. Gradient2 has
1.5 to 2."""

SLACK = 0.05
"""Seconds that a first token may take beside that: it waits for the step under way, the network, and our own loop."""

SMOOTHING = 0.2
"""Part of each observation that is taken over, as in Gradient2: the last 5 count most."""

GROWTH = 0.1
"""What the factor grows by, before smoothing, at each observation: from the floor back to 1 in 45 of them. One in six
may come late, and the factor still grows."""

FLOOR = 0.1
"""Least factor. With a window of 0.3 s it leaves 30 ms, and an endpoint with nothing in flight always has room."""

STEEPEST = 0.5
"""Least gradient: one first token that comes a minute late is one event."""


@dataclass(slots=True)
class _Trust:
    """``name``: of the endpoint in this slot, which another gets when it is gone."""

    name: str
    factor: float = 1.0


class Windows:
    """The factors of one model's endpoints. ``adapt``: if false, all stay 1. ``narrowed``: those below 1, by slot."""

    def __init__(self, *, adapt: bool) -> None:
        self._adapt = adapt
        self.narrowed: dict[int, _Trust] = {}

    def factor(self, endpoint: Endpoint) -> float:
        """In ``FLOOR``..1."""
        trust = self.narrowed.get(endpoint.slot)
        return trust.factor if trust is not None and trust.name == endpoint.name else 1.0

    def first_token(self, endpoint: Endpoint, predicted: float, observed: float) -> None:
        """A first token came ``observed`` seconds after its request was booked there, when ``predicted`` seconds were
        expected. What is no time is ignored."""
        if not (self._adapt and isfinite(predicted) and isfinite(observed) and predicted >= 0 and observed > 0):
            return
        trust = self.narrowed.get(endpoint.slot)
        gradient = TOLERANCE * (predicted + SLACK) / observed
        if trust is None or trust.name != endpoint.name:
            if gradient >= 1:  # nothing is remembered of those that are as predicted
                return
            trust = self.narrowed[endpoint.slot] = _Trust(endpoint.name)
        factor = trust.factor
        if gradient >= 1:
            factor += SMOOTHING * GROWTH
        else:
            factor += SMOOTHING * factor * (max(gradient, STEEPEST) - 1)
        if factor >= 1:
            del self.narrowed[endpoint.slot]
        else:
            trust.factor = max(factor, FLOOR)
