"""Which of an endpoint's blocks are forgotten when the index is full: what came first, but not what is used.

Forgetting goes through all blocks in laps. A block that was used since the last lap began is left for the next.
"""

from __future__ import annotations

from gateway.kvcache.blocks import Blocks
from gateway.kvcache.names import Named, locations
from gateway.kvcache.shelf import BITS, OFFSET, Shelf

SPARED = 8
"""Blocks that were used and are passed over for each one forgotten, at most: looking for an unused one must end."""


class Laps:
    """Of one endpoint."""

    def __init__(self, blocks: Blocks, shelf: Shelf) -> None:
        self._blocks = blocks
        self._shelf = shelf
        # What is left of this lap, and when it and the last began.
        self._left = 0
        self._began = 0
        self._since = 0

    def forget(self, count: int, now: int) -> None:
        """Forget ``count`` blocks. ``now``: in the index's count of placements, as ``Stretch.used`` is."""
        names, copies = self._blocks.names, self._blocks.copies
        count = min(count, len(names))
        spared = SPARED * count
        plain = self._blocks.is_plain and not copies.many
        # Stretch -> bits: blocks that were stored together are mostly in one, and leave it together.
        leaving: dict[int, int] = {}
        while count:
            again: list[tuple[int, Named]] = []
            size = len(names)
            for name, named in names.pop_oldest(count):
                if not self._left:
                    self._left, self._began, self._since = size, now, self._began
                self._left -= 1
                if spared and self._used(named) > self._since:
                    spared -= 1
                    again.append((name, named))
                    continue
                count -= 1
                size -= 1
                if not plain or not isinstance(named, int):
                    for tier in copies.forget(name):
                        self._blocks.tiers.release(tier, named)
                    continue
                leaving[named >> BITS] = leaving.get(named >> BITS, 0) | 1 << (named & OFFSET)
            names.young.update(again)
        self._blocks.tiers.release_plain(leaving)

    def _used(self, named: Named) -> int:
        return max((self._shelf.at(where).used for where in locations(named)), default=0)
