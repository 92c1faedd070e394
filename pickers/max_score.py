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
from operator import attrgetter

from gateway.framework import Context, Endpoint, NoParameters, Request, Scored

_SCORE = attrgetter("score")


class MaxScore:
    """Highest score first, ties at random."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        self._random = context.random

    def pick(self, request: Request, scored: Sequence[Scored], /) -> Sequence[Endpoint]:
        ranked = sorted(scored, key=_SCORE, reverse=True)
        best = ranked[0].score
        ties = 1
        while ties < len(ranked) and ranked[ties].score == best:
            ties += 1
        if ties > 1:
            chosen = self._random.randrange(ties)
            ranked[0], ranked[chosen] = ranked[chosen], ranked[0]
        return [one.endpoint for one in ranked]
