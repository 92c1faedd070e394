"""Counts how many copies of each block an engine has on each tier, by engine hash.

Engines announce the end of each copy; a hash is gone with its last one. Most blocks have one copy, on the GPU, and need
no entry here. A count may be wrong: it ends with age, and when the engine is seen to compute the block again.
"""

from __future__ import annotations

from gateway.kvcache.index.layers import Layer

COUNT_MAX = 255
"""Where a count stays: only a block that as many requests computed at once has so many copies."""


class Copies:
    """Of the blocks of one engine; only for hashes that the caller knows.

    ``computed``: blocks announced on the GPU so far. ``turnover``: blocks that the engine's cache has room for; 0:
    unknown. ``many``: hash -> (copies on the GPU, ``computed`` when the last was announced), if there is more than one.
    ``absent``: hashes that are not on the GPU. ``below``: hash -> copies on the CPU, and hash -> copies in storage;
    never replaced.
    """

    def __init__(self) -> None:
        self.computed = 0
        self.turnover = 0
        self.many: dict[int, tuple[int, int]] = {}
        self.absent: set[int] = set()
        self.below: tuple[dict[int, int], dict[int, int]] = ({}, {})

    @property
    def is_tiered(self) -> bool:
        """Whether something is on a tier below the GPU."""
        cpu, storage = self.below
        return bool(cpu or storage)

    def count(self, block_hash: int, tier: Layer) -> int:
        """Copies on a tier. Once the engine has filled its cache since a second copy was announced, it has evicted that
        copy, announced or not."""
        if tier is not Layer.GPU:
            return self.below[tier - 1].get(block_hash, 0)
        if block_hash in self.absent:
            return 0
        copies, at = self.many.get(block_hash, (1, 0))
        if copies > 1 and 0 < self.turnover < self.computed - at:
            del self.many[block_hash]
            return 1
        return copies

    def is_below(self, block_hash: int) -> bool:
        return any(block_hash in below for below in self.below)

    def add(self, block_hash: int, tier: Layer) -> bool:
        """One more; true if it is the first on its tier."""
        copies = self.count(block_hash, tier)
        if tier is not Layer.GPU:
            self.below[tier - 1][block_hash] = min(copies + 1, COUNT_MAX)
        elif copies:
            self.many[block_hash] = min(copies + 1, COUNT_MAX), self.computed
        else:
            self.absent.discard(block_hash)
        return not copies

    def remove(self, block_hash: int, tier: Layer) -> bool:
        """One less, if there is one; true if it was the last on its tier."""
        copies = self.count(block_hash, tier)
        if tier is not Layer.GPU:
            if copies > 1:
                self.below[tier - 1][block_hash] = copies - 1
            elif copies:
                del self.below[tier - 1][block_hash]
        elif copies > 2:
            self.many[block_hash] = copies - 1, self.many[block_hash][1]
        elif copies == 2:
            del self.many[block_hash]
        elif copies:
            self.absent.add(block_hash)
        return copies == 1

    def drop(self, block_hash: int) -> list[Layer]:
        """The block is not known any more; returns the tiers that it was on."""
        tiers = [tier for tier in (Layer.CPU, Layer.STORAGE) if self.below[tier - 1].pop(block_hash, 0)]
        if block_hash not in self.absent:
            tiers.append(Layer.GPU)
        self.absent.discard(block_hash)
        self.many.pop(block_hash, None)
        return tiers
