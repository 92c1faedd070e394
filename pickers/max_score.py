"""The picker ``max-score``.

What it does
    Orders candidates by score, highest first; among those that share the highest score chance decides which is first.

Scheduling intent
    The picker for scorers that know best. Chance among equals keeps gateways that run side by side from all choosing
    the first endpoint of an idle fleet.

Inputs
    The weighted sums.

Parameters
    None.

Example
    ``plugins: [{name: best, type: max-score}]``
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.framework import Context, Endpoint, NoParameters, Request


class MaxScore:
    """Highest score first, ties at random."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        self._random = context.random

    def pick(self, request: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        ranked = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        best = scores[ranked[0]]
        ties = 1
        while ties < len(ranked) and scores[ranked[ties]] == best:
            ties += 1
        if ties > 1:
            chosen = self._random.randrange(ties)
            ranked[0], ranked[chosen] = ranked[chosen], ranked[0]
        return list(map(endpoints.__getitem__, ranked))
