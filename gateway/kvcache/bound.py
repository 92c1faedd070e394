"""How large an index is, and what becomes of that: a large one packs what is old, a full one forgets what is oldest."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.kvcache.holder import Holder
from gateway.kvcache.names import Ages

EVICT = 500
"""Blocks that are forgotten at once when the index is full, or one in so many of a small one: 1 ms of work."""

PACK = 2048
"""Hashes that are packed at once of the endpoint whose events come: 1 ms of work, and more than come mostly."""

PACK_OTHER = 512
"""And of one after the other in turn, so that those that say nothing are packed, too."""


class Bound:
    """Of one index. ``holders``: all that are in it. ``most``: blocks, counted for every endpoint that holds one, and
    until they have left the shelf for those that are gone."""

    def __init__(self, holders: Mapping[int, Holder], most: int, ages: Ages) -> None:
        self._holders = holders
        self._most = most
        self._ages = ages
        self._total = 0
        self._turn = 0

    def count(self, holder: Holder) -> int:
        """What the endpoint holds has changed; returns by how much."""
        size = holder.holdings.size
        grown = size - holder.counted
        self._total += grown
        holder.counted = size
        return grown

    def keep(self, holder: Holder, now: int) -> None:
        """Keep the bound, after events of this endpoint. ``now``: in the index's count of placements."""
        if self._total > self._most:
            largest = max(self._holders.values(), key=lambda other: other.counted)
            several = min(EVICT, self._most // EVICT)
            largest.holdings.forget_oldest(max(self._total - self._most, several), now)
            self.count(largest)
        if self._total > self._ages.above:
            holder.holdings.age(self._ages, PACK)
            holders = list(self._holders.values())
            self._turn %= len(holders)
            if not holders[self._turn].holdings.age(self._ages, PACK_OTHER):
                self._turn += 1

    def left(self, holder: Holder, most: int | None = None) -> None:
        """Of an endpoint that is gone, so many blocks have left the shelf; or all that were counted."""
        count = holder.counted if most is None else min(most, holder.counted)
        holder.counted -= count
        self._total -= count
