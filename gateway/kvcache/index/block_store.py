"""The blocks that one engine holds: each hash, the locations of its keys, and its copies on each tier.

Keeps these three consistent, whatever changes them; knows nothing of events. Several blocks of an engine may have the
same keys: under two hashes of the same tokens, and where larger blocks begin alike. A column has one bit for all of
them, which stays until the last is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain as join
from itertools import islice

from gateway.kvcache.index.block_table import CHUNK_BITS, LEADING, OFFSET_MASK, BlockChunk, BlockTable
from gateway.kvcache.index.copies import Copies
from gateway.kvcache.index.eviction import EvictionOrder
from gateway.kvcache.index.hash_map import HashMap, Locations, as_tuple
from gateway.kvcache.index.layers import PREDICTED, Layer
from gateway.kvcache.index.predictions import Predictions

MAX_RECOMPUTED = 16_384
"""Blocks that are remembered as computed again: 2 MB, and more than two of the longest prompts. Beyond that, copies
that were miscounted end with age."""


class BlockStore:
    """``column``: the endpoint's GPU column in ``table``. ``predictions``: are told of blocks that come to the GPU
    or leave it. ``order``: in which the engine will evict its GPU blocks.
    ``duplicates``: tier -> location -> blocks that hold the key beside the first."""

    def __init__(self, table: BlockTable, column: int, predictions: Predictions) -> None:
        self.known = HashMap()
        self.copies = Copies()
        self.order = EvictionOrder(column)
        self.duplicates: tuple[dict[int, int], ...] = ({}, {}, {})
        self._table = table
        self._column = column
        self._predictions = predictions
        # Location -> ``Copies.computed`` when the block there was last computed again; the earliest first.
        self._recomputed_at: dict[int, int] = {}
        # What a reset in progress has not looked at yet.
        self._to_clear = HashMap()

    @property
    def is_plain(self) -> bool:
        """Every block is on the GPU only, and no two have the same key: then a removal of a hash that is not in
        ``copies.many`` is the end of the block and of its keys."""
        cpu, storage = self.copies.below
        return not (self.duplicates[Layer.GPU] or self.copies.absent or cpu or storage)

    def store(self, hashes: Sequence[int], keys: Sequence[int], behind: int) -> None:
        """Add new blocks, on the GPU, in a run behind the location ``behind``."""
        known = self.known.recent
        each = len(keys) // len(hashes)
        found: list[int] = []
        at = 0
        table, order, column = self._table, self.order, self._column
        entered = table.insert(behind, keys, column)
        for chunk, offset, count in entered:
            first = chunk.number << CHUNK_BITS | offset
            if each == 1:
                known.update(zip(hashes[at : at + count], range(first, first + count), strict=True))
                at += count
            else:
                found += range(first, first + count)
            bits = LEADING[count] << offset
            if had := table.mark(chunk, column, bits):
                self._count_duplicates(Layer.GPU, chunk, had)
            order.stored(chunk, bits)
        # Only now: a chunk may be there twice, for keys that it had and for new ones, which no column held until now.
        predicted = column + PREDICTED
        for chunk, offset, count in entered:
            if chunk.full >> predicted & 1 or (chunk.part and predicted in chunk.part):
                self._predictions.confirmed(column, chunk, LEADING[count] << offset)
        if each > 1:
            for number, block_hash in enumerate(hashes):
                known[block_hash] = tuple(found[number * each : (number + 1) * each])

    def add_copy(self, block_hash: int, tier: Layer) -> None:
        """One more copy of a known block."""
        self._drop_recomputed(block_hash)
        if self.copies.add(block_hash, tier):
            for where in as_tuple(self.known[block_hash]):
                self._mark(tier, self._table.chunk_at(where), 1 << (where & OFFSET_MASK))

    def remove_copy(self, block_hash: int, tier: Layer) -> None:
        """One copy less of a known block; with the last one on all tiers it is known no longer."""
        self._drop_recomputed(block_hash)
        copies = self.copies
        if not copies.remove(block_hash, tier):
            return
        locations = self.known[block_hash]
        if block_hash in copies.absent and not copies.is_below(block_hash):
            self.known.pop(block_hash)
            copies.absent.discard(block_hash)
        self.release(tier, locations)

    def remove_plain(self, hashes: Sequence[int]) -> list[int]:
        """Remove blocks where all are plain; returns the hashes that are not known, or have other copies."""
        recent, packed, many = self.known.recent, self.known.packed, self.copies.many
        gone: dict[int, int] = {}
        left = []
        for block_hash in hashes:
            locations = recent.pop(block_hash, None) if block_hash not in many else None
            if locations is None and (
                block_hash in many or not packed.size or (locations := packed.pop(block_hash)) is None
            ):
                left.append(block_hash)
            elif isinstance(locations, int):
                gone[locations >> CHUNK_BITS] = gone.get(locations >> CHUNK_BITS, 0) | 1 << (locations & OFFSET_MASK)
            else:
                self.release(Layer.GPU, locations)
        self.release_plain(gone)
        return left

    def mark_recomputed(self, found: Iterable[int]) -> None:
        """The engine had to compute the blocks at these locations again: each has one copy now.

        Which hashes they have is not looked up here, but when a hash with several copies is next added or removed.
        """
        copies, anew = self.copies, self._recomputed_at
        if not copies.many:
            anew.clear()
            return
        for where in found:
            anew.pop(where, None)
            anew[where] = copies.computed
        for where in list(islice(anew, max(0, len(anew) - MAX_RECOMPUTED))):
            del anew[where]

    def clear_gpu(self) -> Iterator[None]:
        """Take all from the GPU, in steps of one block each; what is on other tiers stays.

        Until the last step, only ``remove_all`` may be called.
        """
        self.copies.many.clear()
        absent, self.copies.absent = self.copies.absent, set()
        self._to_clear = self.known.pop_all()
        return self._clear(absent)

    def remove_all(self) -> Iterator[None]:
        """Take everything out of the table, in steps of one block each. The store is of no use any more."""
        for _, locations in join(self.known.drain(), self._to_clear.drain()):
            self._unmark_around(locations)
            yield

    def _drop_recomputed(self, block_hash: int) -> None:
        """Forget copies that were counted before the block was computed again."""
        if self._recomputed_at and (several := self.copies.many.get(block_hash)) is not None:
            at = several[1]
            if any(self._recomputed_at.get(where, -1) >= at for where in as_tuple(self.known[block_hash])):
                del self.copies.many[block_hash]

    def _clear(self, absent: set[int]) -> Iterator[None]:
        copies, known = self.copies, self.known
        for block_hash, locations in self._to_clear.drain():
            if copies.is_below(block_hash):
                known.recent[block_hash] = locations
                copies.absent.add(block_hash)
            if block_hash not in absent:
                self.release(Layer.GPU, locations)
            yield
        self._to_clear = HashMap()

    def _mark(self, tier: Layer, chunk: BlockChunk, bits: int) -> None:
        """These blocks are on the tier. What was predicted of them is confirmed."""
        if had := self._table.mark(chunk, self._column + tier, bits):
            self._count_duplicates(tier, chunk, had)
        if tier is Layer.GPU:
            self.order.stored(chunk, bits)
            column = self._column
            predicted = column + PREDICTED
            if chunk.full >> predicted & 1 or (chunk.part and predicted in chunk.part):
                self._predictions.confirmed(column, chunk, bits)

    def _count_duplicates(self, tier: Layer, chunk: BlockChunk, had: int) -> None:
        """The tier had these blocks' keys already."""
        while had:
            bit = had & -had
            had ^= bit
            where = chunk.number << CHUNK_BITS | bit.bit_length() - 1
            self.duplicates[tier][where] = self.duplicates[tier].get(where, 0) + 1

    def release(self, tier: Layer, locations: Locations) -> None:
        """A block's last copy on the tier is gone, and with it its keys, unless other blocks have them."""
        duplicates = self.duplicates[tier]
        for where in reversed(as_tuple(locations)):
            others = duplicates.get(where, 0) if duplicates else 0
            if others > 1:
                duplicates[where] = others - 1
            elif others:
                del duplicates[where]
            elif tier is Layer.GPU:
                self.release_plain({where >> CHUNK_BITS: 1 << (where & OFFSET_MASK)})
            else:
                self._table.unmark(self._table.chunk_at(where), self._column + tier, 1 << (where & OFFSET_MASK))

    def release_plain(self, gone: Mapping[int, int]) -> None:
        """The same for plain blocks on the GPU: chunk number -> bits."""
        table, column, order = self._table, self._column, self.order
        used = order.used
        for number, bits in gone.items():
            chunk = table.chunk_at(number << CHUNK_BITS)
            if used and (users := used.get(chunk)) is not None:
                self._predictions.evicting(chunk, bits, users)
            if not table.unmark(chunk, column, bits):
                order.gone(chunk)

    def _unmark_around(self, locations: Locations) -> None:
        """Unmark all chunks of a block on all tiers: everything of the endpoint is to go."""
        for where in as_tuple(locations):
            chunk = self._table.chunks[where >> CHUNK_BITS]
            if chunk is not None:  # if another endpoint has it by now, nothing of ours is in it
                for tier in (Layer.GPU, Layer.CPU, Layer.STORAGE):
                    self._table.unmark_all(chunk, self._column + tier)
                self.order.gone(chunk)
