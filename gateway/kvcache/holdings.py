"""What one endpoint says that it holds: its engine hashes, each mapped to blocks on the shelf.

Rules: a key is made only of a GPU event whose tokens, hashes and extra keys are understood; every other event adds or
removes a tier of a hash that is known. A block whose content cannot be named (embeddings) is known without a key, and
so is all that is behind it. Writes its own places on the shelf, and knows nothing of other endpoints.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from xxhash import xxh3_64_intdigest

from gateway.framework import Medium
from gateway.kvcache.blocks import Blocks
from gateway.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, all_short, is_named, short
from gateway.kvcache.eviction import EvictionOrder
from gateway.kvcache.extra_keys import trusted
from gateway.kvcache.keys import chain_past, root
from gateway.kvcache.laps import Laps
from gateway.kvcache.layers import Layer, tier_of
from gateway.kvcache.names import Ages, locations
from gateway.kvcache.orphans import COST, Orphans
from gateway.kvcache.shelf import BITS, OFFSET, SIZE, Shelf, Stretch

FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds whose blocks are held from a prompt's start; old engines tell none. A window or a state says nothing of a
prefix."""

NO_EXTRA = [None]


class Holdings:
    """The blocks of one endpoint.

    ``unit``: tokens of a block key. ``place``: this endpoint's on the shelf, of its GPU layer. ``block_size``: the
    engine's, in tokens; 0 before any event. ``confirmed``: told of blocks on the GPU that were predicted.
    """

    def __init__(
        self,
        unit: int,
        shelf: Shelf,
        place: int,
        confirmed: Callable[[Stretch, int], None] = lambda stretch, bits: None,
    ) -> None:
        self.block_size = 0
        self._unit = unit
        self._shelf = shelf
        self._place = place
        self._bit = 1 << place
        self._pack = struct.Struct(f"{unit}I").pack
        self._group: int | None = None
        self._blocks = Blocks(shelf, place, confirmed)
        self._names = self._blocks.names
        self._copies = self._blocks.copies
        self._orphans = Orphans()
        self._laps = Laps(self._blocks, shelf)

    def __len__(self) -> int:
        """Engine blocks known."""
        return len(self._names)

    @property
    def size(self) -> int:
        """What it takes of an index's room: engine blocks, or as much as they do."""
        return len(self._names) + COST * len(self._orphans)

    @property
    def below(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """What is on the CPU, and what in storage: as ``Copies.below``."""
        return self._copies.below

    @property
    def order(self) -> EvictionOrder:
        """In which order the engine will evict what is on its GPU."""
        return self._blocks.tiers.order

    @property
    def is_tiered(self) -> bool:
        """Something is on a tier below the GPU."""
        return self._copies.is_tiered

    def has_room(self, turnover: int) -> None:
        """The engine's cache has room for ``turnover`` of its blocks; 0: it does not say."""
        self._copies.turnover = turnover

    # what its engine says

    def problem(self, event: BlockStored) -> str:
        """Why nothing can be made of ``event``: a short word, or ``""``."""
        if event.kv_cache_spec_kind not in FULL_ATTENTION or not self._ours(event.group_idx):
            return "other-group"
        if event.medium != "GPU" and tier_of(event.medium) is None:
            return "unknown-medium"
        size = event.block_size
        if (size < 1 or len(event.token_ids) != len(event.block_hashes) * size) and is_named(event):
            return "tokens-do-not-fit"
        return ""

    def quick(self, events: Sequence[Event], at: int = 0) -> tuple[int, int, int]:
        """Apply events, from number ``at`` on, while they are what most are: one new block behind one that is known, or
        one block less. Returns the number of the first that is neither, and how many blocks were stored and removed.
        """
        names, old, many, shelf, bit, unit, group = (
            self._names.young,
            self._names.old,
            self._copies.many,
            self._shelf,
            self._bit,
            self._unit,
            self._group,
        )
        stretches, heads, pack = shelf.stretches, shelf.heads, self._pack
        stored = removed = 0
        count = len(events) if self.block_size == unit and not self._orphans else 0
        counted = not self._blocks.is_plain
        gone: dict[int, int] = {}  # as ``Tiers.release_plain`` takes it: what was stored together mostly goes together
        while at < count:
            event = events[at]
            if isinstance(event, AllBlocksCleared) or event.group_idx != group or event.medium != "GPU":
                break
            hashes = event.block_hashes
            if len(hashes) != 1:
                break
            name = hashes[0]
            if isinstance(event, BlockRemoved):
                if counted or name in many:
                    break
                where = names.pop(name, None)  # type: ignore[arg-type]  # bytes are no names, and so not there
                if where is None and old:
                    where = old.pop(name)
                if type(where) is not int:
                    if where is not None:
                        names[name] = where  # type: ignore[index]  # it was one
                    break
                gone[where >> BITS] = gone.get(where >> BITS, 0) | 1 << (where & OFFSET)
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
                self._blocks.tiers.release_plain(gone)
                gone.clear()
            where = names.get(event.parent_block_hash)  # type: ignore[arg-type]  # nor is None a name
            if where is None and old:
                where = old.get(event.parent_block_hash)
            if type(where) is not int or type(name) is not int or name < 0 or name in names:
                break
            try:
                tokens = pack(*event.token_ids)
            except struct.error:
                break
            offset = (where & OFFSET) + 1
            stretch = stretches[where >> BITS]
            assert stretch is not None
            keys = stretch.keys
            key = xxh3_64_intdigest(tokens, keys[offset - 1])
            if stretch.full == bit and offset == len(keys) < SIZE and key not in heads:
                keys.append(key)  # its only holder goes on
                shelf.size += 1
                names[name] = where + 1
            elif old and name in old:
                break
            else:
                self._blocks.put([name], [key], where)
                counted = not self._blocks.is_plain
            stored += 1
            at += 1
        self._blocks.tiers.release_plain(gone)
        self._copies.computed += stored
        return at, stored, removed

    def named(self, event: BlockStored, copies: bool = True) -> str:
        """Apply an event without a ``problem`` that ``is_named``, of blocks of whole units.

        ``copies``: false if blocks that are known already are told again, and not computed again. Returns a word for
        what was not used, or ``""``.
        """
        try:
            tokens = array("I", event.token_ids)
        except OverflowError:  # no token ids: negative, or above 32 bits
            return "malformed"
        if event.group_idx is not None:
            self._group = event.group_idx
        self.block_size = event.block_size
        self._copies.computed += len(event.block_hashes)
        return self._name(event, tokens, copies)

    def first_key(self, event: BlockStored) -> int | None:
        """Of a run that begins a prompt."""
        if event.parent_block_hash is not None:
            return None
        named = self._names.get(short(event.block_hashes[0]))
        above = () if named is None else locations(named)
        if above:
            return self._shelf.key(above[0])
        believed, salt, media = trusted(event)
        try:
            tokens = array("I", event.token_ids[: self._unit])
        except OverflowError:
            return None
        first = root(True, event.lora_name, salt)
        return chain_past(tokens, self._unit, first, _within(media, 0, self._unit))[0] if believed else None

    def stored(self, event: BlockStored) -> str:
        """Apply an event without a ``problem`` that has no key of its own: a tier of blocks that are known."""
        tier = tier_of(event.medium)
        assert tier is not None
        unknown = 0
        for value in event.block_hashes:
            name = short(value)
            if name in self._names:
                self._blocks.add(name, tier)
            else:
                unknown += 1
        return "unknown-hash" if unknown else ""

    def removed(self, event: BlockRemoved) -> str:
        """Apply; returns a word for what was not used, or ``""``."""
        if event.group_idx != self._group and not self._ours(event.group_idx):
            return "other-group"
        tier = Layer.GPU if event.medium == "GPU" else tier_of(event.medium)
        if tier is None:
            return "unknown-medium"
        unknown, hashes = 0, all_short(event.block_hashes)
        if tier is Layer.GPU and self._blocks.is_plain:
            hashes = self._blocks.drop(hashes)
        for name in hashes:
            if name in self._names:
                self._blocks.take(name, tier)
            elif not (tier is Layer.GPU and self._orphans.take(name)):
                unknown += 1
        return "unknown-hash" if unknown else ""

    def clear(self) -> Iterator[None] | None:
        """The GPU tier is empty; what is on others stays. The work, in steps of one block each, to be done before any
        other event is applied; None if there is nothing on others, so that all may as well be forgotten."""
        if not self.is_tiered:
            return None
        self._orphans = Orphans()
        return self._blocks.clear()

    def recomputed(self, found: Iterable[int]) -> None:
        """The engine had to compute the blocks at these locations anew: none was left."""
        self._blocks.recomputed(found)

    def forget_oldest(self, count: int, now: int) -> None:
        """Make room for ``count`` blocks, first by what is of use only if its parent comes yet.

        ``now``: in the index's count of placements, as ``Stretch.used`` is.
        """
        if self._orphans:
            count -= COST * self._orphans.forget_oldest(-(-count // COST))
        if count > 0:
            self._laps.forget(count, now)

    def age(self, ages: Ages, most: int) -> bool:
        """Pack the oldest hashes, ``most`` of them at most: the index is large. False if none is old."""
        return self._names.age(ages, most)

    def leave(self) -> Iterator[None]:
        """Take everything off the shelf, in steps of one block each. The holdings are of no use afterwards."""
        return self._blocks.leave()

    # how

    def _ours(self, group: int | None) -> bool:
        """One group of full attention speaks for the engine: each holds the same tokens. Connectors name none."""
        return group is None or self._group is None or group == self._group

    def _name(self, event: BlockStored, tokens: array[int], copies: bool) -> str:
        """Put a run behind its parent, and behind the run what waited for it."""
        hashes, size = all_short(event.block_hashes), event.block_size
        believed, salt, media = trusted(event)
        start = 0
        behind = -1
        if event.parent_block_hash is None:
            parent: int | None = root(True, event.lora_name, salt)
        else:
            before = short(event.parent_block_hash)
            while before not in self._names:
                # It was never announced. A block of the run itself may be known all the same.
                if start == len(hashes):
                    return "orphan"
                name = hashes[start]
                if name in self._names:
                    self._again_there(name, copies)
                else:
                    told = tokens[start * size : (start + 1) * size] if start < believed else None
                    self._orphans.add(before, name, told, _within(media, start * size, (start + 1) * size))
                before = name
                start += 1
            above = locations(self._names[before])
            behind = above[-1] if above else -1
            parent = self._shelf.key(behind) if above else None
        if parent is None:
            believed = start
        problem = ""
        if start or believed < len(hashes):
            problem = "orphan" if start else "extra-keys"
            tokens = tokens[start * size : believed * size]
            hashes = hashes[start:]
            media = _within(media, start * size, believed * size)
        keys = chain_past(tokens, self._unit, parent or 0, media)
        count = len(keys) * self._unit // size
        if self._are_new(hashes, keys, behind):
            if count:
                self._blocks.put(hashes[:count], keys, behind)
        elif not self._put_mixed(hashes[:count], keys, behind, copies):
            return "other-content"
        for name in hashes[count:]:
            if name in self._names:
                self._again_there(name, copies)
            else:
                self._names.young[name] = ()
        if self._orphans:
            self._adopt(hashes)
        return problem

    def _are_new(self, hashes: list[int], keys: list[int], behind: int) -> bool:
        """Whether none of a run, whose first blocks have ``keys``, is known, nor in it twice."""
        names, old = self._names.young, self._names.old
        if not names.keys().isdisjoint(hashes) or len(hashes) != len(set(hashes)):
            return False
        # Where nobody holds the keys, the hashes are not known, unless an engine gives one to two contents.
        return not old or self._shelf.is_new(behind, keys) or not any(name in old for name in hashes)

    def _put_mixed(self, hashes: Sequence[int], keys: Sequence[int], behind: int, copies: bool) -> bool:
        """Blocks in a row of which some are known. False if one is known as another content: then so is all behind."""
        each = len(keys) // len(hashes) if hashes else 1
        for number, name in enumerate(hashes):
            if name not in self._names:
                self._blocks.put([name], keys[number * each : (number + 1) * each], behind)
            else:
                self._again_there(name, copies)
            found = locations(self._names[name])
            if not found or self._shelf.key(found[-1]) != keys[(number + 1) * each - 1]:
                return False
            behind = found[-1]
        return True

    def _again_there(self, name: int, copies: bool) -> None:
        """A known block is announced on the GPU."""
        if copies or name in self._copies.absent:
            self._blocks.add(name, Layer.GPU)

    def _adopt(self, waited_for: list[int]) -> None:
        """Name the orphans behind known blocks."""
        while waited_for:
            parent = waited_for.pop()
            for name, tokens, media, copies in self._orphans.adopt(parent):
                above = locations(self._names[parent])
                if name in self._names:  # it became known otherwise
                    for _ in range(copies):
                        self._blocks.add(name, Layer.GPU)
                    continue
                if above and tokens is not None:
                    keys = chain_past(tokens, self._unit, self._shelf.key(above[-1]), media)
                    self._blocks.put([name], keys, above[-1])
                else:
                    self._names.young[name] = ()
                for _ in range(copies - 1):
                    self._blocks.add(name, Layer.GPU)
                waited_for.append(name)


def _within(media: Sequence[Medium], start: int, end: int) -> tuple[Medium, ...]:
    """Those that begin at tokens ``start`` to ``end``, counted from ``start``."""
    return tuple(Medium(one.offset - start, one.identifier) for one in media if start <= one.offset < end)
