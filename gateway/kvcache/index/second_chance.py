"""Second-chance (CLOCK) eviction of one endpoint's blocks, when the index is full.

Goes through all blocks, the oldest first, in laps. A block that was used since the last lap began is left for the next.
"""

from __future__ import annotations

from gateway.kvcache.index.block_store import BlockStore
from gateway.kvcache.index.block_table import CHUNK_BITS, OFFSET_MASK, BlockTable
from gateway.kvcache.index.hash_map import Locations, as_tuple

SPARED = 8
"""Used blocks that are passed over for each evicted one, at most: the search for an unused block must end."""


class SecondChance:
    """The state of the clock. ``table``: where the blocks' keys are."""

    def __init__(self, table: BlockTable) -> None:
        self._table = table
        # Blocks left of this lap; when it began, and when the last did.
        self._left = 0
        self._began = 0
        self._since = 0

    def evict(self, blocks: BlockStore, count: int, now: int) -> None:
        """Drop ``count`` of ``blocks``. ``now``: in the index's count of placements, as ``BlockChunk.used``."""
        known, copies = blocks.known, blocks.copies
        count = min(count, len(known))
        spared = SPARED * count
        plain = blocks.is_plain and not copies.many
        # Chunk number -> bits: blocks that were stored together are mostly in one chunk, and leave it together.
        leaving: dict[int, int] = {}
        while count:
            again: list[tuple[int, Locations]] = []
            size = len(known)
            for block_hash, locations in known.pop_oldest(count):
                if not self._left:
                    self._left, self._began, self._since = size, now, self._began
                self._left -= 1
                if spared and self._used(locations) > self._since:
                    spared -= 1
                    again.append((block_hash, locations))
                    continue
                count -= 1
                size -= 1
                if not plain or not isinstance(locations, int):
                    for tier in copies.drop(block_hash):
                        blocks.release(tier, locations)
                    continue
                leaving[locations >> CHUNK_BITS] = leaving.get(locations >> CHUNK_BITS, 0) | 1 << (
                    locations & OFFSET_MASK
                )
            known.recent.update(again)
        blocks.release_plain(leaving)

    def _used(self, locations: Locations) -> int:
        return max((self._table.chunk_at(where).used for where in as_tuple(locations)), default=0)
