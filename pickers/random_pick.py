"""The picker ``random``.

What it does
    Picks one candidate at random; each is as likely, whatever its score.

Scheduling intent
    A baseline to compare with, and a way to spread requests whose cost is unknown.

Inputs
    None.

Parameters
    None.

Example
    ``plugins: [{name: any, type: random}]``
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.framework import Context, Endpoint, NoParameters, Request


class RandomPick:
    """One of the candidates."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        self._random = context.random

    def pick(self, request: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        return [self._random.choice(endpoints)]
