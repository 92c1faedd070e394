"""Allocates the columns of the block table: those of a removed endpoint are cleared in slices, and then used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from gateway.kvcache.index.layers import LAYERS


class Columns:
    """Of one index. An endpoint's column is the first of ``LAYERS`` in a row. ``sweeps``: what is left of clearing
    columns."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[int] = []
        self.sweeps: deque[Iterator[None]] = deque()

    def allocate(self) -> int:
        """A free and empty column: the lowest, since columns are bits of integers."""
        if self._free:
            return heappop(self._free)
        column = self._count
        self._count += LAYERS
        return column

    def release(self, column: int, work: Iterator[None]) -> None:
        """Its endpoint is gone. ``work`` clears it, in small steps; after that it is free."""
        self.sweeps.append(self._clear_then_free(column, work))

    def sweep(self, budget: int) -> bool:
        """Clear released columns, in ``budget`` steps at most; true when none is left."""
        while self.sweeps and budget > 0:
            done = sum(1 for _ in islice(self.sweeps[0], budget))
            if done < budget:
                self.sweeps.popleft()
            budget -= done
        return not self.sweeps

    def _clear_then_free(self, column: int, work: Iterator[None]) -> Iterator[None]:
        yield from work
        heappush(self._free, column)
