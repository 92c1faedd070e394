"""Who has which places on the shelf, and which are free: an endpoint that is gone is cleared from its own in slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from gateway.kvcache.layers import LAYERS


class Places:
    """Of one index. An endpoint's place is the first of as many as there are layers."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[int] = []
        self._sweeps: deque[Iterator[None]] = deque()

    @property
    def wait(self) -> bool:
        """Something is to be swept."""
        return bool(self._sweeps)

    def take(self) -> int:
        """A place that nobody has, and where nothing is: the lowest, for places are bits of numbers."""
        if self._free:
            return heappop(self._free)
        place = self._count
        self._count += LAYERS
        return place

    def leave(self, place: int, work: Iterator[None]) -> None:
        """Whoever had it is gone. ``work`` clears it, in small steps; after that it is free."""
        self._sweeps.append(self._leave(place, work))

    def sweep(self, budget: int) -> bool:
        """Clear places that were left, in ``budget`` steps at most; true when there are no more."""
        while self._sweeps and budget > 0:
            done = sum(1 for _ in islice(self._sweeps[0], budget))
            if done < budget:
                self._sweeps.popleft()
            budget -= done
        return not self._sweeps

    def _leave(self, place: int, work: Iterator[None]) -> Iterator[None]:
        yield from work
        heappush(self._free, place)
