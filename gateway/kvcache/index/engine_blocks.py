"""Applies the events of one engine to its blocks.

Rules: a key is made only of a GPU event whose tokens, hashes and extra keys are understood; every other event adds or
removes a tier of a known hash. Writes only its own columns of the block table, and knows nothing of other endpoints.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence

from xxhash import xxh3_64_intdigest

from gateway.kvcache.index.block_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    all_short,
    has_only_tokens,
    is_keyed,
    short,
)
from gateway.kvcache.index.block_table import CHUNK_BITS, CHUNK_SIZE, OFFSET_MASK, BlockTable
from gateway.kvcache.index.extra_keys import parse_extra_keys
from gateway.kvcache.index.hash_map import Packing, as_tuple
from gateway.kvcache.index.keys import chain_with_media, media_within, root
from gateway.kvcache.index.layers import Layer, tier_of
from gateway.kvcache.index.pending_blocks import PENDING_COST, PendingBlocks
from gateway.kvcache.index.predictions import Predictions
from gateway.kvcache.index.run_store import RunStore
from gateway.kvcache.index.second_chance import SecondChance

FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache whose blocks are held from a prompt's start; old engines report none. Blocks of a window or a state
say nothing of a prefix."""


class EngineBlocks(RunStore):
    """The blocks of one endpoint.

    Its arguments are ``RunStore``'s. ``block_size``: tokens of the engine's blocks; 0 before any event.
    """

    def __init__(self, unit: int, table: BlockTable, column: int, predictions: Predictions) -> None:
        super().__init__(unit, table, column, predictions)
        self.block_size = 0
        self._bit = 1 << column
        self._pack = struct.Struct(f"{unit}I").pack
        # One group of full attention stands for the engine: all hold the same tokens. KV connectors report none.
        self._group: int | None = None
        self._second_chance = SecondChance(table)

    def __len__(self) -> int:
        """Engine blocks known."""
        return len(self.known.recent) + self.known.packed.size

    @property
    def size(self) -> int:
        """What counts towards the index's size: engine blocks, and pending ones as the memory that they take."""
        return len(self) + PENDING_COST * len(self._pending.blocks)

    # events

    def problem(self, event: BlockStored) -> str:
        """Why ``event`` cannot be applied: a label of ``kvgate_kv_events_total``, or ``""``."""
        ours, group = self._group, event.group_idx
        if event.kv_cache_spec_kind not in FULL_ATTENTION or not (group is None or ours is None or group == ours):
            return "other-group"
        if event.medium != "GPU" and tier_of(event.medium) is None:
            return "unknown-medium"
        size = event.block_size
        if (size < 1 or len(event.token_ids) != len(event.block_hashes) * size) and is_keyed(event):
            return "tokens-do-not-fit"
        return ""

    def apply_simple(self, events: Sequence[Event], at: int = 0) -> tuple[int, int, int]:
        """Apply events from number ``at`` on, while each stores one new block behind a known one, or removes one block:
        most events do. Returns the number of the first that does neither, and how many blocks were stored and
        removed."""
        known, packed, many, table, bit, unit, group = (
            self.known.recent,
            self.known.packed,
            self.copies.many,
            self._table,
            self._bit,
            self._unit,
            self._group,
        )
        chunks, heads, pack = table.chunks, table.heads, self._pack
        stored = removed = 0
        count = len(events) if self.block_size == unit and not self._pending.blocks else 0
        counted = not self.is_plain
        gone: dict[int, int] = {}  # chunk number -> bits: blocks that were stored together mostly go together
        while at < count:
            event = events[at]
            if isinstance(event, AllBlocksCleared) or event.group_idx != group or event.medium != "GPU":
                break
            hashes = event.block_hashes
            if len(hashes) != 1:
                break
            block_hash = hashes[0]
            if isinstance(event, BlockRemoved):
                if counted or block_hash in many:
                    break
                where = known.pop(block_hash, None)  # type: ignore[arg-type]  # bytes are no names, and so not there
                if where is None and packed.size:
                    where = packed.pop(block_hash)
                if type(where) is not int:
                    if where is not None:
                        known[block_hash] = where  # type: ignore[index]  # it was one
                    break
                gone[where >> CHUNK_BITS] = gone.get(where >> CHUNK_BITS, 0) | 1 << (where & OFFSET_MASK)
                removed += 1
                at += 1
                continue
            if event.block_size != unit or event.kv_cache_spec_kind not in FULL_ATTENTION or not has_only_tokens(event):
                break
            if gone:
                self.release_plain(gone)
                gone.clear()
            where = known.get(event.parent_block_hash)  # type: ignore[arg-type]  # nor is None a name
            if where is None and packed.size:
                where = packed.get(event.parent_block_hash)
            if type(where) is not int or type(block_hash) is not int or block_hash < 0 or block_hash in known:
                break
            try:
                tokens = pack(*event.token_ids)
            except struct.error:
                break
            offset = (where & OFFSET_MASK) + 1
            chunk = chunks[where >> CHUNK_BITS]
            assert chunk is not None
            keys = chunk.keys
            key = xxh3_64_intdigest(tokens, keys[offset - 1])
            if chunk.full == bit and offset == len(keys) < CHUNK_SIZE and key not in heads:
                keys.append(key)  # the only holder of the chunk adds to its end
                table.size += 1
                known[block_hash] = where + 1
            elif packed.size and block_hash in packed:
                break
            else:
                self.store([block_hash], [key], where)
                counted = not self.is_plain
            stored += 1
            at += 1
        if gone:
            self.release_plain(gone)
        self.copies.computed += stored
        return at, stored, removed

    def store_keyed(self, event: BlockStored, copies: bool = True) -> str:
        """Apply an event without a ``problem`` that ``is_keyed``, of blocks of whole units.

        ``copies``: false if known blocks are announced again without having been computed again. Returns a label for
        what was not used, or ``""``.
        """
        try:
            tokens = array("I", event.token_ids)
        except OverflowError:  # negative, or above 32 bits
            return "malformed"
        if event.group_idx is not None:
            self._group = event.group_idx
        self.block_size = event.block_size
        self.copies.computed += len(event.block_hashes)
        return self.store_run(event, tokens, copies)

    def first_key(self, event: BlockStored) -> int | None:
        """The first key of a run that begins a prompt; None if it does not, or is not understood."""
        if event.parent_block_hash is not None:
            return None
        locations = self.known.get(short(event.block_hashes[0]))
        above = () if locations is None else as_tuple(locations)
        if above:
            return self._table.key_at(above[0])
        understood, salt, media = parse_extra_keys(event)
        try:
            tokens = array("I", event.token_ids[: self._unit])
        except OverflowError:
            return None
        if not understood:
            return None
        first = root(True, event.lora_name, salt)
        return chain_with_media(tokens, self._unit, first, media_within(media, 0, self._unit))[0]

    def store_tier(self, event: BlockStored) -> str:
        """Apply an event without a ``problem`` that has no keys of its own: known blocks are on a tier. Returns a
        label, or ``""``."""
        tier = tier_of(event.medium)
        assert tier is not None
        unknown = 0
        for value in event.block_hashes:
            block_hash = short(value)
            if block_hash in self.known:
                self.add_copy(block_hash, tier)
            else:
                unknown += 1
        return "unknown-hash" if unknown else ""

    def remove(self, event: BlockRemoved) -> str:
        """Apply; returns a label for what was not used, or ``""``."""
        ours, group = self._group, event.group_idx
        if not (group is None or ours is None or group == ours):
            return "other-group"
        tier = Layer.GPU if event.medium == "GPU" else tier_of(event.medium)
        if tier is None:
            return "unknown-medium"
        unknown, hashes = 0, all_short(event.block_hashes)
        if tier is Layer.GPU and self.is_plain:
            hashes = self.remove_plain(hashes)
        for block_hash in hashes:
            if block_hash in self.known:
                self.remove_copy(block_hash, tier)
            elif not (tier is Layer.GPU and self._pending.remove(block_hash)):
                unknown += 1
        return "unknown-hash" if unknown else ""

    def clear(self) -> Iterator[None] | None:
        """The GPU tier is empty; other tiers stay. Returns the work, in steps of one block each, to be done before any
        other event is applied; None if nothing is on other tiers, so that all may be dropped."""
        if not self.copies.is_tiered:
            return None
        self._pending = PendingBlocks()
        return self.clear_gpu()

    def drop_oldest(self, count: int, now: int) -> None:
        """Make room for ``count`` blocks, first by dropping pending ones.

        ``now``: in the index's count of placements, as ``BlockChunk.used``.
        """
        if self._pending.blocks:
            count -= PENDING_COST * self._pending.drop_oldest(-(-count // PENDING_COST))
        if count > 0:
            self._second_chance.evict(self, count, now)

    def pack(self, packing: Packing, most: int, *, large: bool = True) -> bool:
        """Pack the oldest hashes, ``most`` of them at most; false if there are too few. ``large``: as
        ``HashMap.pack``."""
        return self.known.pack(packing, most, large=large)
