"""The picker ``round-robin``.

What it does
    Picks the candidate whose turn is longest ago; one that never had a turn comes first, in the candidates' order.
    With candidates that stay the same this is the plain rotation; when some come, go or are filtered out it stays
    fair, which a counter modulo their number does not.

Scheduling intent
    A baseline to compare with, and equal shares for engines without any cache to speak of.

Inputs
    The endpoints' names. Scores are ignored. What it remembers belongs to the instance: give each profile its own.

Parameters
    None.

Example
    ``plugins: [{name: next, type: round-robin}]``
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.framework import Context, Endpoint, NoParameters, Request

REMEMBERED = 4096
"""Turns; beyond it the older half is forgotten. Names of endpoints that are gone must not pile up, and a name that is
forgotten while it is in use has one turn early."""


class RoundRobin:
    """Least recently picked first."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        self._turns: dict[tuple[str, str], int] = {}  # (model, endpoint) -> when; insertion order is age
        self._turn = 0

    def pick(self, request: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        model, turns = request.model.name, self._turns
        waited = sorted(endpoints, key=lambda endpoint: turns.get((model, endpoint.name), 0))
        chosen = (model, waited[0].name)
        self._turn += 1
        turns.pop(chosen, None)
        turns[chosen] = self._turn
        if len(turns) > REMEMBERED:
            for name in list(turns)[: REMEMBERED // 2]:
                del turns[name]
        return waited
