"""Runs of blocks as an engine announces them: each is stored behind its parent, or waits until that is known.

A block whose content has no key (embeddings) is known without one, and so is everything behind it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from gateway.core.prompt import MediaItem
from gateway.kvcache.index.block_events import BlockStored, all_short, has_only_tokens, short
from gateway.kvcache.index.block_store import BlockStore
from gateway.kvcache.index.block_table import BlockTable
from gateway.kvcache.index.extra_keys import parse_extra_keys
from gateway.kvcache.index.hash_map import as_tuple
from gateway.kvcache.index.keys import PLAIN_ROOTS, chain, chain_with_media, media_within, root
from gateway.kvcache.index.layers import Layer
from gateway.kvcache.index.pending_blocks import PendingBlocks
from gateway.kvcache.index.predictions import Predictions


class RunStore(BlockStore):
    """``unit``: tokens of a block key. The others: as ``BlockStore``'s."""

    def __init__(self, unit: int, table: BlockTable, column: int, predictions: Predictions) -> None:
        super().__init__(table, column, predictions)
        self._unit = unit
        self._pending = PendingBlocks()

    def store_run(self, event: BlockStored, tokens: array[int], copies: bool) -> str:
        """Store a run behind its parent, and behind the run what waited for it. Returns a label for what was not used,
        or ``""``."""
        hashes, size = all_short(event.block_hashes), event.block_size
        understood, salt = len(hashes), None
        media: tuple[MediaItem, ...] = ()
        if not has_only_tokens(event):
            understood, salt, media = parse_extra_keys(event)
        start = 0
        behind = -1
        if event.parent_block_hash is None:
            lora = event.lora_name
            parent: int | None = root(True, lora, salt) if lora or salt else PLAIN_ROOTS[True]
        else:
            before = short(event.parent_block_hash)
            while before not in self.known:
                # The parent was never announced. A block of the run itself may be known all the same.
                if start == len(hashes):
                    return "orphan"
                block_hash = hashes[start]
                if block_hash in self.known:
                    self._store_again(block_hash, copies)
                else:
                    at, end = start * size, (start + 1) * size
                    content = tokens[at:end] if start < understood else None
                    self._pending.add(before, block_hash, content, media_within(media, at, end))
                before = block_hash
                start += 1
            above = as_tuple(self.known[before])
            behind = above[-1] if above else -1
            parent = self._table.key_at(behind) if above else None
        if parent is None:
            understood = start
        problem = ""
        if start or understood < len(hashes):
            problem = "orphan" if start else "extra-keys"
            tokens = tokens[start * size : understood * size]
            hashes = hashes[start:]
            media = media_within(media, start * size, understood * size)
        unit, parent = self._unit, parent or 0
        keys = chain_with_media(tokens, unit, parent, media) if media else chain(tokens, unit, parent)
        count = len(keys) * unit // size
        known, packed = self.known.recent, self.known.packed
        are_new = known.keys().isdisjoint(hashes) and len(hashes) == len(set(hashes))
        if are_new and packed.size:
            # If no column holds the keys, the hashes are not known, unless an engine gives one hash to two contents.
            are_new = self._table.is_new(behind, keys) or not any(block_hash in packed for block_hash in hashes)
        if are_new:
            if count:
                self.store(hashes[:count], keys, behind)
        elif not self._store_mixed(hashes[:count], keys, behind, copies):
            return "other-content"
        for block_hash in hashes[count:]:
            if block_hash in self.known:
                self._store_again(block_hash, copies)
            else:
                self.known.recent[block_hash] = ()
        if self._pending.blocks:
            self._resolve_pending(hashes)
        return problem

    def _store_mixed(self, hashes: Sequence[int], keys: Sequence[int], behind: int, copies: bool) -> bool:
        """Store a run of which some blocks are known. False if one is known with other content: then all behind it is
        wrong."""
        each = len(keys) // len(hashes) if hashes else 1
        for number, block_hash in enumerate(hashes):
            if block_hash not in self.known:
                self.store([block_hash], keys[number * each : (number + 1) * each], behind)
            else:
                self._store_again(block_hash, copies)
            found = as_tuple(self.known[block_hash])
            if not found or self._table.key_at(found[-1]) != keys[(number + 1) * each - 1]:
                return False
            behind = found[-1]
        return True

    def _store_again(self, block_hash: int, copies: bool) -> None:
        """A known block is announced on the GPU."""
        if copies or block_hash in self.copies.absent:
            self.add_copy(block_hash, Layer.GPU)

    def _resolve_pending(self, waited_for: list[int]) -> None:
        """Store the pending blocks behind blocks that are known now."""
        while waited_for:
            parent = waited_for.pop()
            for block_hash, tokens, media, copies in self._pending.pop_children(parent):
                above = as_tuple(self.known[parent])
                if block_hash in self.known:  # it became known by another event
                    for _ in range(copies):
                        self.add_copy(block_hash, Layer.GPU)
                    continue
                if above and tokens is not None:
                    keys = chain_with_media(tokens, self._unit, self._table.key_at(above[-1]), media)
                    self.store([block_hash], keys, above[-1])
                else:
                    self.known.recent[block_hash] = ()
                for _ in range(copies - 1):
                    self.add_copy(block_hash, Layer.GPU)
                waited_for.append(block_hash)
