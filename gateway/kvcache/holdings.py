"""What one endpoint says that it holds: its engine hashes, each mapped to block keys.

Rules: a key is made only of a GPU event whose tokens, hashes and extra keys are understood; every other event adds or
removes a tier of a hash that is known. A block whose content cannot be named (media, embeddings) is known without a
key, and so is all that is behind it. Copies of a block are counted, since engines announce each copy's end. Writes its
own bit into the index's masks, and knows nothing of other endpoints.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice
from typing import TypeAlias

from gateway.kvcache.events import BlockRemoved, BlockStored, short
from gateway.kvcache.keys import chain, root
from gateway.kvcache.orphans import Orphans

FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds whose blocks are held from a prompt's start; old engines tell none. A window or a state says nothing of a
prefix."""

COUNT_BITS = 8
"""Of the count of a block's copies on one tier."""
COUNT_MAX = (1 << COUNT_BITS) - 1
"""Where it stays: so many copies there are only of a block that as many requests computed at once."""

Named: TypeAlias = int | tuple[int, ...]
"""A block's key, or its keys where the engine's blocks are larger than the unit, or none. Not an object: there are
millions."""


class Tier(IntEnum):
    GPU = 0
    CPU = 1
    STORAGE = 2


TIERS = {tier.name: tier for tier in Tier}


def tier_of(medium: str | None) -> Tier | None:
    """The tier of an event's ``medium``, in any case; None: one that we do not know."""
    return Tier.GPU if medium is None else TIERS.get(medium.upper())


class Holdings:
    """The blocks of one endpoint.

    ``unit``: tokens of a block key. ``masks``: the index's, by tier. ``bit``: this endpoint's in them.
    ``block_size``: the engine's, in tokens; 0 before any event.
    """

    def __init__(self, unit: int, masks: Sequence[dict[int, int]], bit: int) -> None:
        self.block_size = 0
        self._unit = unit
        self._masks = masks
        self._bit = bit
        self._group: int | None = None
        self._blocks: dict[int, Named] = {}
        # Hash -> copies by tier, COUNT_BITS each; no entry: one copy, on the GPU.
        self._copies: dict[int, int] = {}
        # Key -> blocks that hold it beside the first, by tier: under another hash, or as the start of a larger block.
        self._again: tuple[dict[int, int], ...] = ({}, {}, {})
        self._orphans = Orphans()

    def __len__(self) -> int:
        """Engine blocks known."""
        return len(self._blocks)

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

    def named(self, event: BlockStored) -> tuple[list[int], str]:
        """Apply an event without a ``problem`` that ``is_named``, of blocks of whole units.

        Returns keys that are on the GPU now, and a word for what was not used, or ``""``.
        """
        try:
            tokens = array("I", event.token_ids)
        except OverflowError:  # no token ids: negative, or above 32 bits
            return [], "malformed"
        if event.group_idx is not None:
            self._group = event.group_idx
        self.block_size = event.block_size
        return self._name(event, tokens)

    def stored(self, event: BlockStored) -> str:
        """Apply an event without a ``problem`` that has no key of its own: a tier of blocks that are known."""
        tier = tier_of(event.medium)
        assert tier is not None
        unknown = 0
        for value in event.block_hashes:
            name = short(value)
            if name in self._blocks:
                self._add(name, tier)
            else:
                unknown += 1
        return "unknown-hash" if unknown else ""

    def removed(self, event: BlockRemoved) -> str:
        """Apply; returns a word for what was not used, or ``""``."""
        if not self._ours(event.group_idx):
            return "other-group"
        tier = tier_of(event.medium)
        if tier is None:
            return "unknown-medium"
        unknown = 0
        for value in event.block_hashes:
            name = short(value)
            if name in self._blocks:
                self._take(name, tier)
            elif not (tier is Tier.GPU and self._orphans.take(name)):
                unknown += 1
        return "unknown-hash" if unknown else ""

    @property
    def only_gpu(self) -> bool:
        """No block is on another tier."""
        return not any(copies >> COUNT_BITS for copies in self._copies.values())

    def cleared(self) -> None:
        """The GPU tier is empty; what is on others stays."""
        self._orphans = Orphans()
        for name in list(self._blocks):
            self._cap(name, 0)

    def recomputed(self, keys: set[int]) -> None:
        """The engine had to compute the blocks of ``keys`` anew: none was left, so there is one copy now, not more."""
        for name, copies in list(self._copies.items()):
            if _there(copies, Tier.GPU) > 1 and not keys.isdisjoint(_keys(self._blocks[name])):
                self._cap(name, 1)

    def forget_oldest(self, count: int, used: set[int]) -> None:
        """Forget ``count`` blocks, the first stored first; one that was ``used`` since goes behind, once."""
        count = min(count, len(self._blocks))
        while count:
            for name in list(islice(self._blocks, count)):
                named = self._blocks.pop(name)
                if not used.isdisjoint(_keys(named)):
                    used.difference_update(_keys(named))
                    self._blocks[name] = named
                    continue
                count -= 1
                copies = self._copies.pop(name, 1)
                for tier in Tier:
                    if _there(copies, tier):
                        self._release(tier, named)

    def __iter__(self) -> Iterator[int]:
        """The keys of all blocks, on any tier; some more than once."""
        for named in self._blocks.values():
            yield from _keys(named)

    def _ours(self, group: int | None) -> bool:
        """One group of full attention speaks for the engine: each holds the same tokens. Connectors name none."""
        return group is None or self._group is None or group == self._group

    def _name(self, event: BlockStored, tokens: array[int]) -> tuple[list[int], str]:
        """Put a run behind its parent, and behind the run what waited for it."""
        hashes = [short(value) for value in event.block_hashes]
        size = event.block_size
        trusted, salt = _trusted(event)
        start = 0
        if event.parent_block_hash is None:
            parent: int | None = root(True, event.lora_name, salt)
        else:
            behind = short(event.parent_block_hash)
            while behind not in self._blocks:
                # It was never announced. A block of the run itself may be known all the same.
                if start == len(hashes):
                    return [], "orphan"
                name = hashes[start]
                if name in self._blocks:
                    self._add(name, Tier.GPU)
                else:
                    told = tokens[start * size : (start + 1) * size] if start < trusted else None
                    self._orphans.add(behind, name, told)
                behind = name
                start += 1
            above = _keys(self._blocks[behind])
            parent = above[-1] if above else None
        if parent is None:
            trusted = start
        if start or trusted < len(hashes):
            tokens = tokens[start * size : trusted * size]
            hashes = hashes[start:]
            problem = "orphan" if start else "extra-keys"
        else:
            problem = ""
        keys = chain(tokens, self._unit, parent or 0)
        each = size // self._unit
        named: Sequence[Named] = keys
        if each > 1:
            named = [tuple(keys[first : first + each]) for first in range(0, len(keys), each)]
        for name, one in zip(hashes, named, strict=False):
            self._hold(name, one)
        for name in hashes[len(named) :]:
            self._hold(name, ())
        if self._orphans:
            keys = keys + self._adopt(hashes)
        return keys, problem

    def _adopt(self, waited_for: list[int]) -> list[int]:
        """Name the orphans behind known blocks; returns their keys."""
        adopted: list[int] = []
        while waited_for:
            parent = waited_for.pop()
            for name, tokens, copies in self._orphans.adopt(parent):
                above = _keys(self._blocks[parent])
                keys = chain(tokens, self._unit, above[-1]) if above and tokens is not None else []
                for _ in range(copies):
                    self._hold(name, keys[0] if len(keys) == 1 else tuple(keys))
                adopted += keys
                waited_for.append(name)
        return adopted

    def _hold(self, name: int, named: Named) -> None:
        """One more copy of a block on the GPU."""
        if name in self._blocks:
            self._add(name, Tier.GPU)
        else:
            self._blocks[name] = named
            self._set(Tier.GPU, named)

    def _add(self, name: int, tier: Tier) -> None:
        copies = self._copies.get(name, 1)
        there = _there(copies, tier)
        if not there:
            self._set(tier, self._blocks[name])
        if there < COUNT_MAX:
            self._count(name, copies + (1 << tier * COUNT_BITS))

    def _take(self, name: int, tier: Tier) -> None:
        copies = self._copies.get(name, 1)
        there = _there(copies, tier)
        if there == 1:
            self._release(tier, self._blocks[name])
        if there:
            self._count(name, copies - (1 << tier * COUNT_BITS))

    def _cap(self, name: int, most: int) -> None:
        """At most ``most`` copies are on the GPU."""
        copies = self._copies.get(name, 1)
        there = _there(copies, Tier.GPU)
        if there > most:
            if not most:
                self._release(Tier.GPU, self._blocks[name])
            self._count(name, copies - there + most)

    def _count(self, name: int, copies: int) -> None:
        if copies > 1:
            self._copies[name] = copies
            return
        self._copies.pop(name, None)
        if not copies:
            del self._blocks[name]

    def _set(self, tier: Tier, named: Named) -> None:
        masks, bit = self._masks[tier], self._bit
        for key in (named,) if isinstance(named, int) else named:
            mask = masks.get(key)
            if mask is None:
                masks[key] = bit
            elif mask & bit:
                self._again[tier][key] = self._again[tier].get(key, 0) + 1
            else:
                masks[key] = mask | bit

    def _release(self, tier: Tier, named: Named) -> None:
        """A block's last copy on the tier is gone, and with it its keys, unless other blocks hold them."""
        masks, again = self._masks[tier], self._again[tier]
        for key in _keys(named):
            others = again.get(key, 0) if again else 0
            if others > 1:
                again[key] = others - 1
            elif others:
                del again[key]
            else:
                unset(masks, key, self._bit)


def is_named(event: BlockStored) -> bool:
    """Whether keys are made of it. On other tiers salts and adapters may be missing, and tokens prove nothing."""
    return bool(event.token_ids) and (event.medium == "GPU" or tier_of(event.medium) is Tier.GPU)


def unset(masks: dict[int, int], key: int, bit: int) -> None:
    """Clear a bit of a key, which leaves with its last."""
    mask = masks.get(key, 0)
    if mask & ~bit:
        masks[key] = mask & ~bit
    elif mask:
        del masks[key]


def _there(copies: int, tier: Tier) -> int:
    return copies >> tier * COUNT_BITS & COUNT_MAX


def _keys(named: Named) -> tuple[int, ...]:
    return (named,) if isinstance(named, int) else named


def _trusted(event: BlockStored) -> tuple[int, str | None]:
    """How many leading blocks of a run are told by tokens, adapter and salt alone; and the salt.

    A block's extra keys are the adapter's name, media as lists, the salt (a prompt's first block only), a digest of
    embeddings, in this order and untagged. Tokens do not tell what media are, nor what is behind them. Engines before
    0.13 tell an adapter by a number of their own.
    """
    if event.lora_id is not None and event.lora_name is None:
        return 0, None
    if not event.extra_keys or not any(event.extra_keys):
        return len(event.block_hashes), None
    salt = None
    for number, extra in enumerate(event.extra_keys):
        others = extra[1:] if extra and extra[0] == event.lora_name else extra
        if not others:
            continue
        first = number == 0 and event.parent_block_hash is None
        if not (first and len(others) == 1 and isinstance(others[0], str)):
            return min(number, len(event.block_hashes)), salt
        salt = others[0]
    return len(event.block_hashes), salt
