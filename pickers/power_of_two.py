"""The picker ``power-of-two``.

What it does
    Draws two candidates at random, and puts the one with the higher score first; chance among equals.

    Source: the power of two choices (Mitzenmacher 2001), as in SMG, AIBrix and Ray Serve, whose measure is the requests
    in flight: give the profile the scorer ``active-requests`` for that.

Scheduling intent
    Nearly as even as the best of all, without all gateways choosing the same endpoint at the same moment: for several
    gateways whose scores say only what each has sent itself, or that go by scrapes which are old.

Inputs
    The weighted sums.

Parameters
    None.

Example
    ``plugins: [{name: two, type: power-of-two}]``
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.framework import Context, Endpoint, NoParameters, Request


class PowerOfTwo:
    """The better of two."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        self._random = context.random

    def pick(self, request: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        if len(endpoints) == 1:
            return endpoints
        # In the order of a random draw: of two equals either may be first.
        one, other = self._random.sample(range(len(endpoints)), 2)
        if scores[other] > scores[one]:
            one, other = other, one
        return [endpoints[one], endpoints[other]]
