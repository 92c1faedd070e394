"""The picker ``weighted-random``.

What it does
    Orders candidates at random so that each comes first with the probability of its share of all scores. Candidates
    that score 0 come last; where all do, each is as likely.

    Source: llm-d's ``weighted-random-picker``: reservoir sampling after Efraimidis and Spirakis (2006), the largest of
    U^(1/score) with U uniform in 0..1.

Scheduling intent
    Scores as shares of the traffic: gateways that know nothing of each other do not all pick the same endpoint, and one
    that looks worse is still tried. With scores that are close together it is little more than ``random``.

Inputs
    The weighted sums.

Parameters
    None.

Example
    ``plugins: [{name: any, type: weighted-random}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

from gateway.framework import Context, Endpoint, NoParameters, Request


class WeightedRandom:
    """By chance, in proportion to the score."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        self._random = context.random

    def pick(self, request: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        chance = self._random.random
        # log(U) / score has the order of U^(1/score), which is 0 for all small scores alike. U in 0..1, 1 excluded.
        drawn = [(log(1.0 - chance()) / score if score > 0 else -inf, chance()) for score in scores]
        order = sorted(range(len(scores)), key=drawn.__getitem__, reverse=True)
        return [endpoints[i] for i in order]
