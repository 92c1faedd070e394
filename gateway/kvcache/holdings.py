"""What one endpoint says that it holds: its engine hashes, each mapped to blocks on the shelf.

Rules: a key is made only of a GPU event whose tokens, hashes and extra keys are understood; every other event adds or
removes a tier of a hash that is known. A block whose content cannot be named (embeddings) is known without a key, and
so is all that is behind it. Writes its own places on the shelf, and knows nothing of other endpoints.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from gateway.framework import Medium
from gateway.kvcache.copies import Copies
from gateway.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash, short
from gateway.kvcache.extra_keys import trusted
from gateway.kvcache.keys import chain_past, root
from gateway.kvcache.layers import Layer, tier_of
from gateway.kvcache.orphans import Orphans
from gateway.kvcache.shelf import ALL, BITS, OFFSET, SIZE, Shelf, Stretch

FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds whose blocks are held from a prompt's start; old engines tell none. A window or a state says nothing of a
prefix."""

NO_EXTRA = [None]

SPARED = 8
"""Blocks that were used and are passed over for each one forgotten, at most: looking for an unused one must end."""

Named: TypeAlias = int | tuple[int, ...]
"""A block's location, or its locations where the engine's blocks are larger than the unit, or none. Not an object:
there are millions."""


class Holdings:
    """The blocks of one endpoint.

    ``unit``: tokens of a block key. ``place``: this endpoint's on the shelf, of its GPU layer. ``block_size``: the
    engine's, in tokens; 0 before any event.
    """

    def __init__(self, unit: int, shelf: Shelf, place: int) -> None:
        self.block_size = 0
        self._unit = unit
        self._shelf = shelf
        self._place = place
        self._bit = 1 << place
        self._pack = struct.Struct(f"{unit}I").pack
        self._group: int | None = None
        self._names: dict[int, Named] = {}
        self._copies = Copies()
        # Tier -> location -> blocks that hold it beside the first: under another hash, or as the start of a larger one.
        self._again: tuple[dict[int, int], ...] = ({}, {}, {})
        self._orphans = Orphans()
        # Forgetting goes through all blocks in laps: what is left of this one, and when it and the last began.
        self._lap_left = 0
        self._lap_began = 0
        self._spare_since = 0

    def __len__(self) -> int:
        """Engine blocks known."""
        return len(self._names)

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
        if is_named(event) and (size < 1 or len(event.token_ids) != len(event.block_hashes) * size):
            return "tokens-do-not-fit"
        return ""

    def quick(self, events: Sequence[Event], at: int = 0) -> tuple[int, int, int]:
        """Apply events, from number ``at`` on, while they are what most are: one new block behind one that is known, or
        one block less. Returns the number of the first that is neither, and how many blocks were stored and removed.
        """
        names, many, shelf, bit, unit, group = (
            self._names,
            self._copies.many,
            self._shelf,
            self._bit,
            self._unit,
            self._group,
        )
        stretches, heads, pack = shelf.stretches, shelf.heads, self._pack
        stored = removed = 0
        count = len(events) if self.block_size == unit and not self._orphans else 0
        again = self._again[Layer.GPU]
        counted = again or self._copies.absent or self.is_tiered
        while at < count:
            event = events[at]
            if isinstance(event, AllBlocksCleared) or event.group_idx != group or event.medium != "GPU":
                break
            if len(event.block_hashes) != 1:
                break
            (name,) = event.block_hashes
            if isinstance(event, BlockRemoved):
                where = names.get(name)  # type: ignore[arg-type]  # bytes are no names, and so not there
                if type(where) is not int or counted or name in many:
                    break
                del names[name]  # type: ignore[arg-type]
                stretch = stretches[where >> BITS]
                assert stretch is not None
                shelf.unmark(stretch, self._place, 1 << (where & OFFSET))
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
            where = names.get(event.parent_block_hash)  # type: ignore[arg-type]  # nor is None a name
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
            else:
                self._put([name], [key], where)
                counted = counted or again
            stored += 1
            at += 1
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
        above = _locations(self._names.get(short(event.block_hashes[0]), ()))
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
                self._add(name, tier)
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
        names, many, unknown = self._names, self._copies.many, 0
        plain = tier is Layer.GPU and not (self._again[tier] or self._copies.absent) and not self.is_tiered
        for value in event.block_hashes:
            name = value if type(value) is int and value >= 0 else short(value)
            if plain and name not in many and type(where := names.get(name)) is int:
                del names[name]
                self._shelf.unmark(self._shelf.at(where), self._place, 1 << (where & OFFSET))
            elif name in names:
                self._take(name, tier)
            elif not (tier is Layer.GPU and self._orphans.take(name)):
                unknown += 1
        return "unknown-hash" if unknown else ""

    def clear(self) -> Iterator[None] | None:
        """The GPU tier is empty; what is on others stays. The work, in steps of one block each, to be done before any
        other event is applied; None if there is nothing on others, so that all may as well be forgotten."""
        return self._clear() if self.is_tiered else None

    def recomputed(self, locations: set[int]) -> None:
        """The engine had to compute these blocks anew: none was left, so there is one copy now, not more."""
        for name in list(self._copies.many):
            if not locations.isdisjoint(_locations(self._names[name])):
                del self._copies.many[name]

    def forget_oldest(self, count: int, now: int) -> None:
        """Forget ``count`` blocks, the first stored first; one that was used since the last lap is left for the next.

        ``now``: in the index's count of placements, as ``Stretch.used`` is.
        """
        names, shelf = self._names, self._shelf
        count = min(count, len(names))
        spared = SPARED * count
        plain = not (self._again[Layer.GPU] or self._copies.many or self._copies.absent) and not self.is_tiered
        # Blocks that were stored together are mostly in one stretch: they leave it together.
        leaving, bits = -1, 0
        while count:
            for name, named in list(islice(names.items(), count)):
                if not self._lap_left:
                    self._lap_left, self._lap_began, self._spare_since = len(names), now, self._lap_began
                self._lap_left -= 1
                if spared and self._used(named) > self._spare_since:
                    spared -= 1
                    del names[name]
                    names[name] = named
                    continue
                count -= 1
                if not plain or not isinstance(named, int):
                    self._forget(name)
                    continue
                del names[name]
                if named >> BITS != leaving:
                    if bits:
                        shelf.unmark(shelf.at(leaving << BITS), self._place, bits)
                    leaving, bits = named >> BITS, 0
                bits |= 1 << (named & OFFSET)
        if bits:
            shelf.unmark(shelf.at(leaving << BITS), self._place, bits)

    def leave(self) -> Iterator[None]:
        """Take everything off the shelf, in steps of one block each. The holdings are of no use afterwards."""
        for named in self._names.values():
            for where in _locations(named):
                stretch = self._shelf.stretches[where >> BITS]
                if stretch is not None:  # another's by now, maybe: then there is nothing of ours in it
                    for tier in (Layer.GPU, Layer.CPU, Layer.STORAGE):
                        self._shelf.leave(stretch, self._place + tier)
            yield

    # how

    def _ours(self, group: int | None) -> bool:
        """One group of full attention speaks for the engine: each holds the same tokens. Connectors name none."""
        return group is None or self._group is None or group == self._group

    def _name(self, event: BlockStored, tokens: array[int], copies: bool) -> str:
        """Put a run behind its parent, and behind the run what waited for it."""
        hashes, size = _short(event.block_hashes), event.block_size
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
            above = _locations(self._names[before])
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
        if self._names.keys().isdisjoint(hashes) and len(hashes) == len(set(hashes)):
            if count:
                self._put(hashes[:count], keys, behind)
        elif not self._put_mixed(hashes[:count], keys, behind, copies):
            return "other-content"
        for name in hashes[count:]:
            if name in self._names:
                self._again_there(name, copies)
            else:
                self._names[name] = ()
        if self._orphans:
            self._adopt(hashes)
        return problem

    def _put(self, hashes: Sequence[int], keys: Sequence[int], behind: int) -> None:
        """New blocks, on the GPU, in a row behind a location."""
        names = self._names
        each = len(keys) // len(hashes)
        found: list[int] = []
        at = 0
        for stretch, offset, count in self._shelf.enter(behind, keys):
            first = stretch.number << BITS | offset
            if each == 1:
                names.update(zip(hashes[at : at + count], range(first, first + count), strict=True))
                at += count
            else:
                found += range(first, first + count)
            self._set(Layer.GPU, stretch, ALL[count] << offset)
        if each > 1:
            for number, name in enumerate(hashes):
                names[name] = tuple(found[number * each : (number + 1) * each])

    def _put_mixed(self, hashes: Sequence[int], keys: Sequence[int], behind: int, copies: bool) -> bool:
        """Blocks in a row of which some are known. False if one is known as another content: then so is all behind."""
        each = len(keys) // len(hashes) if hashes else 1
        for number, name in enumerate(hashes):
            if name not in self._names:
                self._put([name], keys[number * each : (number + 1) * each], behind)
            else:
                self._again_there(name, copies)
            found = _locations(self._names[name])
            if not found or self._shelf.key(found[-1]) != keys[(number + 1) * each - 1]:
                return False
            behind = found[-1]
        return True

    def _again_there(self, name: int, copies: bool) -> None:
        """A known block is announced on the GPU."""
        if copies or name in self._copies.absent:
            self._add(name, Layer.GPU)

    def _adopt(self, waited_for: list[int]) -> None:
        """Name the orphans behind known blocks."""
        while waited_for:
            parent = waited_for.pop()
            for name, tokens, media, copies in self._orphans.adopt(parent):
                above = _locations(self._names[parent])
                if name in self._names:  # it became known otherwise
                    for _ in range(copies):
                        self._add(name, Layer.GPU)
                    continue
                if above and tokens is not None:
                    keys = chain_past(tokens, self._unit, self._shelf.key(above[-1]), media)
                    self._put([name], keys, above[-1])
                else:
                    self._names[name] = ()
                for _ in range(copies - 1):
                    self._add(name, Layer.GPU)
                waited_for.append(name)

    def _add(self, name: int, tier: Layer) -> None:
        """One more copy of a known block."""
        if self._copies.add(name, tier):
            for where in _locations(self._names[name]):
                self._set(tier, self._shelf.at(where), 1 << (where & OFFSET))

    def _take(self, name: int, tier: Layer) -> None:
        """One copy less of a known block; with its last, on all tiers, it is known no longer."""
        if not self._copies.take(name, tier):
            return
        named = self._names[name]
        if name in self._copies.absent and not self._copies.is_below(name):
            del self._names[name]
            self._copies.absent.discard(name)
        self._release(tier, named)

    def _used(self, named: Named) -> int:
        if isinstance(named, int):
            return self._shelf.at(named).used
        return max((self._shelf.at(where).used for where in named), default=0)

    def _forget(self, name: int) -> None:
        """A block is not known any more, whatever copies there are."""
        tiers = self._copies.forget(name)
        named = self._names.pop(name)
        for tier in tiers:
            self._release(tier, named)

    def _clear(self) -> Iterator[None]:
        self._orphans = Orphans()
        copies = self._copies
        copies.many.clear()
        before, self._names = self._names, {}
        absent, copies.absent = copies.absent, set()
        for name, named in before.items():
            if copies.is_below(name):
                self._names[name] = named
                copies.absent.add(name)
            if name not in absent:
                self._release(Layer.GPU, named)
            yield

    def _set(self, tier: Layer, stretch: Stretch, bits: int) -> None:
        """These blocks are on the tier. What was predicted of them is fact now."""
        shelf, place = self._shelf, self._place
        had = shelf.mark(stretch, place + tier, bits)
        while had:
            bit = had & -had
            had ^= bit
            where = stretch.number << BITS | bit.bit_length() - 1
            self._again[tier][where] = self._again[tier].get(where, 0) + 1
        if tier is Layer.GPU:
            predicted = place + Layer.PREDICTED
            if stretch.full >> predicted & 1 or (stretch.part and predicted in stretch.part):
                shelf.unmark(stretch, predicted, bits)

    def _release(self, tier: Layer, named: Named) -> None:
        """A block's last copy on the tier is gone, and with it its keys, unless other blocks hold them."""
        again = self._again[tier]
        for where in reversed(_locations(named)):
            others = again.get(where, 0) if again else 0
            if others > 1:
                again[where] = others - 1
            elif others:
                del again[where]
            else:
                self._shelf.unmark(self._shelf.at(where), self._place + tier, 1 << (where & OFFSET))


def is_named(event: BlockStored) -> bool:
    """Whether keys are made of it. On other tiers salts and adapters may be missing, and tokens prove nothing."""
    return bool(event.token_ids) and (event.medium == "GPU" or tier_of(event.medium) is Layer.GPU)


def _within(media: Sequence[Medium], start: int, end: int) -> tuple[Medium, ...]:
    """Those that begin at tokens ``start`` to ``end``, counted from ``start``."""
    return tuple(Medium(one.offset - start, one.identifier) for one in media if start <= one.offset < end)


def _locations(named: Named) -> tuple[int, ...]:
    return (named,) if isinstance(named, int) else named


def _short(hashes: list[Hash]) -> list[int]:
    try:
        if min(hashes) >= 0:  # type: ignore[operator]  # a list of numbers, mostly; else it raises
            return hashes  # type: ignore[return-value]
    except TypeError:
        pass
    return [short(value) for value in hashes]
