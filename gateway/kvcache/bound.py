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
    """Of one index. ``holders``: all that are in it. ``most``: blocks, counted for every endpoint that holds one."""

    def __init__(self, holders: Mapping[int, Holder], most: int, ages: Ages) -> None:
        self._holders = holders
        self._most = most
        self._ages = ages
        self._total = 0
        self._turn = 0

    def recount(self, holder: Holder, now: int) -> None:
        """What the endpoint holds has changed. ``now``: in the index's count of placements."""
        self._count(holder)
        if self._total > self._most:
            largest = max(self._holders.values(), key=lambda other: other.counted)
            several = min(EVICT, self._most // EVICT)
            largest.holdings.forget_oldest(max(self._total - self._most, several), now)
            self._count(largest)
        if self._total > self._ages.above:
            holder.holdings.age(self._ages, PACK)
            holders = list(self._holders.values())
            self._turn %= len(holders)
            if not holders[self._turn].holdings.age(self._ages, PACK_OTHER):
                self._turn += 1

    def leave(self, holder: Holder) -> None:
        """The endpoint holds nothing any more."""
        self._total -= holder.counted

    def _count(self, holder: Holder) -> None:
        size = len(holder.holdings)
        self._total += size - holder.counted
        holder.counted = size
