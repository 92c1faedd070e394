"""What one endpoint says that it holds: its engine hashes, each mapped to block keys.

Rules: a key is made only of a GPU event whose tokens, hashes and extra keys are understood; every other event adds or
removes a tier of a hash that is known. Copies of a block are counted, since engines announce each copy's end. Knows
nothing of other endpoints: what changes is returned, and the index sets the bits.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from gateway.kvcache.events import BlockRemoved, BlockStored, short
from gateway.kvcache.keys import chain, root

FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds whose blocks are held from a prompt's start. A window or a state says nothing of a prefix."""

MAX_ORPHANS = 4096
"""Runs kept whose parent is not known: about a minute of a busy engine's, after history was lost."""

MAX_COPIES = 255
"""Copies of one block that are counted."""


class Tier(IntEnum):
    GPU = 0
    CPU = 1
    STORAGE = 2


Change: TypeAlias = tuple[Tier, int, bool]
"""Tier, block key, and whether the endpoint holds it there from now on."""


def tier_of(medium: str | None) -> Tier | None:
    """The tier of an event's ``medium``, in any case; None: one that we do not know."""
    if medium is None:
        return Tier.GPU
    return {"GPU": Tier.GPU, "CPU": Tier.CPU, "STORAGE": Tier.STORAGE}.get(medium.upper())


@dataclass(slots=True)
class _Block:
    """An engine's block: its keys in the model's unit (one, or several where the engine's blocks are larger)."""

    keys: list[int]
    copies: list[int] = field(default_factory=lambda: [0, 0, 0])


@dataclass(slots=True)
class _Orphan:
    """A run whose parent has not been announced (yet)."""

    event: BlockStored
    gone: set[int] = field(default_factory=set)


class Holdings:
    """The blocks of one endpoint. ``unit``: tokens of a block key. ``block_size``: the engine's; 0 before any event."""

    def __init__(self, unit: int, max_blocks: int) -> None:
        self.unit = unit
        self.block_size = 0
        self._max_blocks = max_blocks
        self._group: int | None = None
        self._grouped = False
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        self._copies: tuple[dict[int, int], ...] = ({}, {}, {})
        self._orphans: OrderedDict[int, list[_Orphan]] = OrderedDict()
        self._orphan_of: dict[int, _Orphan] = {}

    def __len__(self) -> int:
        """Engine blocks known."""
        return len(self._blocks)

    def stored(self, event: BlockStored) -> tuple[list[Change], str]:
        """Apply; what changes, and a word for what was not used, or ``""``."""
        if not self._ours(event.group_idx, event.kv_cache_spec_kind):
            return [], "other-group"
        tier = tier_of(event.medium)
        if tier is None:
            return [], "unknown-medium"
        changes: list[Change] = []
        if tier is not Tier.GPU or not event.token_ids:
            unknown = 0
            for value in event.block_hashes:
                block = self._blocks.get(short(value))
                if block is None:
                    unknown += 1
                else:
                    self._add(block, tier, changes)
            return changes, "unknown-hash" if unknown else ""
        if event.block_size < 1 or len(event.token_ids) != len(event.block_hashes) * event.block_size:
            return [], "tokens-do-not-fit"
        if event.block_size % self.unit:
            return [], "block-size"
        self.block_size = event.block_size
        problem = self._map(event, changes)
        return changes, problem

    def removed(self, event: BlockRemoved) -> tuple[list[Change], str]:
        if self._grouped and event.group_idx != self._group:
            return [], "other-group"
        tier = tier_of(event.medium)
        if tier is None:
            return [], "unknown-medium"
        changes: list[Change] = []
        unknown = 0
        for value in event.block_hashes:
            name = short(value)
            block = self._blocks.get(name)
            if block is not None:
                self._take(name, block, tier, changes)
            elif (orphan := self._orphan_of.get(name)) is not None:
                orphan.gone.add(name)
            else:
                unknown += 1
        return changes, "unknown-hash" if unknown else ""

    def cleared(self) -> list[Change]:
        """The GPU tier is empty; what is on others stays."""
        changes: list[Change] = []
        for name, block in list(self._blocks.items()):
            if block.copies[Tier.GPU]:
                block.copies[Tier.GPU] = 1
                self._take(name, block, Tier.GPU, changes)
        self._orphans.clear()
        self._orphan_of.clear()
        return changes

    def keys(self) -> Iterator[tuple[Tier, int]]:
        """All that is held."""
        for tier in Tier:
            for key in self._copies[tier]:
                yield tier, key

    def _ours(self, group: int | None, kind: str | None) -> bool:
        """One group of full attention speaks for the engine: each holds the same tokens."""
        if kind not in FULL_ATTENTION:
            return False
        if not self._grouped:
            self._group, self._grouped = group, True
        return group == self._group

    def _map(self, event: BlockStored, changes: list[Change]) -> str:
        """Make keys of a run, and of the orphans that it is the parent of."""
        parent = self._parent_key(event)
        if parent is None:
            assert event.parent_block_hash is not None
            self._adopt_later(short(event.parent_block_hash), event)
            return "orphan"
        waiting = [(parent, event, frozenset[int]())]
        problem = ""
        while waiting:
            key, run, gone = waiting.pop()
            count = _trusted(run)
            if count < len(run.block_hashes):
                problem = "extra-keys"
            keys = chain(array("I", run.token_ids[: count * run.block_size]), self.unit, key)
            each = run.block_size // self.unit
            for number in range(count):
                name = short(run.block_hashes[number])
                of_block = keys[number * each : (number + 1) * each]
                if name not in gone:
                    block = self._blocks.get(name)
                    if block is None:
                        block = self._blocks[name] = _Block(of_block)
                    self._add(block, Tier.GPU, changes)
                for orphan in self._orphans.pop(name, ()):
                    for value in orphan.event.block_hashes:
                        self._orphan_of.pop(short(value), None)
                    waiting.append((of_block[-1], orphan.event, frozenset(orphan.gone)))
        while len(self._blocks) > self._max_blocks:
            name, block = self._blocks.popitem(last=False)
            for tier in Tier:
                if block.copies[tier]:
                    block.copies[tier] = 1
                    self._drop(block, tier, changes)
        return problem

    def _parent_key(self, event: BlockStored) -> int | None:
        if event.parent_block_hash is None:
            extra = event.extra_keys[0] if event.extra_keys else None
            salts = [value for value in extra or () if isinstance(value, str) and value != event.lora_name]
            return root(True, event.lora_name, salts[0] if salts else None)
        block = self._blocks.get(short(event.parent_block_hash))
        return None if block is None else block.keys[-1]

    def _adopt_later(self, parent: int, event: BlockStored) -> None:
        orphan = _Orphan(event)
        self._orphans.setdefault(parent, []).append(orphan)
        for value in event.block_hashes:
            self._orphan_of[short(value)] = orphan
        while len(self._orphans) > MAX_ORPHANS:
            _, dropped = self._orphans.popitem(last=False)
            for one in dropped:
                for value in one.event.block_hashes:
                    self._orphan_of.pop(short(value), None)

    def _add(self, block: _Block, tier: Tier, changes: list[Change]) -> None:
        block.copies[tier] = min(MAX_COPIES, block.copies[tier] + 1)
        if block.copies[tier] > 1:
            return
        copies = self._copies[tier]
        for key in block.keys:
            # Two hashes may stand for the same tokens: the key is held while either is.
            copies[key] = copies.get(key, 0) + 1
            if copies[key] == 1:
                changes.append((tier, key, True))

    def _take(self, name: int, block: _Block, tier: Tier, changes: list[Change]) -> None:
        if not block.copies[tier]:
            return
        self._drop(block, tier, changes)
        if not any(block.copies):
            del self._blocks[name]

    def _drop(self, block: _Block, tier: Tier, changes: list[Change]) -> None:
        block.copies[tier] -= 1
        if block.copies[tier]:
            return
        copies = self._copies[tier]
        for key in block.keys:
            copies[key] -= 1
            if not copies[key]:
                del copies[key]
                changes.append((tier, key, False))


def _trusted(event: BlockStored) -> int:
    """How many leading blocks of a run can be named by tokens, adapter and salt alone.

    Media and prompt embeddings are in a block's extra keys as lists and bytes: such a block's tokens do not tell what
    it holds, nor those of any behind it.
    """
    for number, extra in enumerate(event.extra_keys or ()):
        for position, value in enumerate(extra or ()):
            is_adapter = value == event.lora_name
            is_salt = isinstance(value, str) and number == 0 and event.parent_block_hash is None and position <= 1
            if not (is_adapter or is_salt):
                return min(number, len(event.block_hashes))
    return len(event.block_hashes)
