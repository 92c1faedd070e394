"""The herd guard: among several deciders, not all of them choose the same endpoint.

What others have booked is known some milliseconds late, or, while they cannot be heard, much later. All who look at the
same old picture find the same endpoint the best one, and it gets all of their requests. So where bookings are likely to
be missing from the picture, only some endpoints are candidates: those that hold the most of the prompt, and some others
by chance, the fewer the more is missing. Pure, but for the chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from gateway.framework import Endpoint, Request

FEWEST = 2
"""Candidates by chance: of two, the better one is chosen, which keeps queues short whatever is missing."""

LEAST_UNSEEN = 0.1
"""Bookings that may be missing without a guard: less than every tenth decision is made beside one that it misses."""


class HerdGuard:
    """``unseen``: gives how many bookings of others are likely to be missing now, 0 and more. ``chance``: who draws."""

    def __init__(self, unseen: Callable[[], float], chance: random.Random) -> None:
        self._unseen = unseen
        self._chance = chance

    def narrow(self, request: Request, candidates: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        """Some of the candidates, in their order; the same tuple where all of them may be chosen from."""
        unseen, count = self._unseen(), len(candidates)
        if unseen < LEAST_UNSEEN or count <= FEWEST:
            return candidates
        drawn = max(FEWEST, int(count / (1.0 + unseen)))
        kept = holders(request, candidates)
        others = [endpoint for endpoint in candidates if endpoint not in kept]
        if drawn >= len(others):
            return candidates
        kept.update(self._chance.sample(others, drawn))
        return tuple([endpoint for endpoint in candidates if endpoint in kept])


def holders(request: Request, candidates: Sequence[Endpoint]) -> set[Endpoint]:
    """Those that hold as much of the prompt as any of them does; none where nobody holds anything."""
    matches, best = request.matches, 0
    found: set[Endpoint] = set()
    for endpoint in candidates:
        match = matches.get(endpoint.slot)
        if match is None:
            continue
        held = match.expected_hit
        if held > best:
            best, found = held, {endpoint}
        elif held == best and held:
            found.add(endpoint)
    return found
