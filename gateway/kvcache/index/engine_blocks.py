"""Applies the events of one engine to its blocks.

Rules: a key is made only of a GPU event whose tokens, hashes and extra keys are understood; every other event adds or
removes a tier of a known hash. A block whose content has no key (embeddings) is known without one, and so is everything
behind it. Writes only its own columns of the block table, and knows nothing of other endpoints.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from xxhash import xxh3_64_intdigest

from gateway.core.prompt import Medium
from gateway.kvcache.index.block_store import BlockStore
from gateway.kvcache.index.block_table import CHUNK_BITS, CHUNK_SIZE, OFFSET_MASK, BlockChunk, BlockTable
from gateway.kvcache.index.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, all_short, is_keyed, short
from gateway.kvcache.index.extra_keys import parse_extra_keys
from gateway.kvcache.index.hash_map import Packing, as_tuple
from gateway.kvcache.index.keys import chain_with_media, root
from gateway.kvcache.index.layers import Layer, tier_of
from gateway.kvcache.index.pending_blocks import PENDING_COST, PendingBlocks
from gateway.kvcache.index.second_chance import SecondChance

FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache whose blocks are held from a prompt's start; old engines report none. Blocks of a window or a state
say nothing of a prefix."""

NO_EXTRA = [None]


class EngineBlocks(BlockStore):
    """The blocks of one endpoint.

    ``unit``: tokens of a block key. ``column``: the endpoint's GPU column in ``table``. ``confirmed``: as
    ``BlockStore``'s. ``block_size``: tokens of the engine's blocks; 0 before any event.
    """

    def __init__(
        self,
        unit: int,
        table: BlockTable,
        column: int,
        confirmed: Callable[[BlockChunk, int], None],
    ) -> None:
        super().__init__(table, column, confirmed)
        self.block_size = 0
        self._unit = unit
        self._bit = 1 << column
        self._pack = struct.Struct(f"{unit}I").pack
        self._group: int | None = None
        self._pending = PendingBlocks()
        self._second_chance = SecondChance(table)

    def __len__(self) -> int:
        """Engine blocks known."""
        return len(self.known)

    @property
    def size(self) -> int:
        """What counts towards the index's size: engine blocks, and pending ones as the memory that they take."""
        return len(self.known) + PENDING_COST * len(self._pending)

    @property
    def below(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Blocks on the CPU, and in storage: as ``Copies.below``."""
        return self.copies.below

    @property
    def is_tiered(self) -> bool:
        """Something is on a tier below the GPU."""
        return self.copies.is_tiered

    def set_capacity(self, turnover: int) -> None:
        """The engine's cache has room for ``turnover`` of its blocks; 0: unknown."""
        self.copies.turnover = turnover

    # events

    def problem(self, event: BlockStored) -> str:
        """Why ``event`` cannot be applied: a label of ``kvgate_kv_events_total``, or ``""``."""
        if event.kv_cache_spec_kind not in FULL_ATTENTION or not self._is_our_group(event.group_idx):
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
        count = len(events) if self.block_size == unit and not self._pending else 0
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
                if where is None and packed:
                    where = packed.pop(block_hash)
                if type(where) is not int:
                    if where is not None:
                        known[block_hash] = where  # type: ignore[index]  # it was one
                    break
                gone[where >> CHUNK_BITS] = gone.get(where >> CHUNK_BITS, 0) | 1 << (where & OFFSET_MASK)
                removed += 1
                at += 1
                continue
            if (
                event.block_size != unit
                or event.kv_cache_spec_kind not in FULL_ATTENTION
                or event.lora_id is not None
                or (event.extra_keys is not None and event.extra_keys != NO_EXTRA)
            ):
                break
            if gone:
                self.release_plain(gone)
                gone.clear()
            where = known.get(event.parent_block_hash)  # type: ignore[arg-type]  # nor is None a name
            if where is None and packed:
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
            elif packed and block_hash in packed:
                break
            else:
                self.store([block_hash], [key], where)
                counted = not self.is_plain
            stored += 1
            at += 1
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
        return self._store_run(event, tokens, copies)

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
        first = root(True, event.lora_name, salt)
        return chain_with_media(tokens, self._unit, first, _within(media, 0, self._unit))[0] if understood else None

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
        if event.group_idx != self._group and not self._is_our_group(event.group_idx):
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
        if not self.is_tiered:
            return None
        self._pending = PendingBlocks()
        return self.clear_gpu()

    def drop_oldest(self, count: int, now: int) -> None:
        """Make room for ``count`` blocks, first by dropping pending ones.

        ``now``: in the index's count of placements, as ``BlockChunk.used``.
        """
        if self._pending:
            count -= PENDING_COST * self._pending.drop_oldest(-(-count // PENDING_COST))
        if count > 0:
            self._second_chance.evict(self, count, now)

    def pack(self, packing: Packing, most: int) -> bool:
        """Pack the oldest hashes, ``most`` of them at most: the index is large. False if there are too few."""
        return self.known.pack(packing, most)

    # parts of the above

    def _is_our_group(self, group: int | None) -> bool:
        """One group of full attention speaks for the engine: all hold the same tokens. KV connectors report none."""
        return group is None or self._group is None or group == self._group

    def _store_run(self, event: BlockStored, tokens: array[int], copies: bool) -> str:
        """Store a run behind its parent, and behind the run what waited for it."""
        hashes, size = all_short(event.block_hashes), event.block_size
        understood, salt, media = parse_extra_keys(event)
        start = 0
        behind = -1
        if event.parent_block_hash is None:
            parent: int | None = root(True, event.lora_name, salt)
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
                    content = tokens[start * size : (start + 1) * size] if start < understood else None
                    self._pending.add(before, block_hash, content, _within(media, start * size, (start + 1) * size))
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
            media = _within(media, start * size, understood * size)
        keys = chain_with_media(tokens, self._unit, parent or 0, media)
        count = len(keys) * self._unit // size
        if self._are_new(hashes, keys, behind):
            if count:
                self.store(hashes[:count], keys, behind)
        elif not self._store_mixed(hashes[:count], keys, behind, copies):
            return "other-content"
        for block_hash in hashes[count:]:
            if block_hash in self.known:
                self._store_again(block_hash, copies)
            else:
                self.known.recent[block_hash] = ()
        if self._pending:
            self._resolve_pending(hashes)
        return problem

    def _are_new(self, hashes: list[int], keys: list[int], behind: int) -> bool:
        """Whether no hash of a run is known, or in it twice. ``keys``: of its first blocks."""
        known, packed = self.known.recent, self.known.packed
        if not known.keys().isdisjoint(hashes) or len(hashes) != len(set(hashes)):
            return False
        # If no column holds the keys, the hashes are not known, unless an engine gives one hash to two contents.
        return not packed or self._table.is_new(behind, keys) or not any(block_hash in packed for block_hash in hashes)

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


def _within(media: Sequence[Medium], start: int, end: int) -> tuple[Medium, ...]:
    """The media that begin at tokens ``start`` to ``end``, with offsets from ``start``."""
    return tuple(Medium(one.offset - start, one.identifier) for one in media if start <= one.offset < end)
