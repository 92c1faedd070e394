"""How many copies of each block of an engine are on each tier, by engine hash.

Engines announce each copy's end, and a hash is gone with its last one. Most blocks have one copy, on the GPU, and need
nothing here. A count is evidence, no more: it ends with age, and with a report that the block was computed again.
"""

from __future__ import annotations

from gateway.kvcache.layers import Layer

COUNT_MAX = 255
"""Where a count stays: so many copies there are only of a block that as many requests computed at once."""


class Copies:
    """Of the blocks of one engine; only of hashes that the caller knows.

    ``computed``: blocks that were announced on the GPU so far. ``turnover``: blocks that the engine's cache has room
    for, 0 if not known. ``many``: hash -> copies on the GPU, where there is more than one, and ``computed`` when that
    was heard. ``absent``: hashes that are not on the GPU. ``below``: hash -> copies on the CPU, and in storage; the
    very same two as long as this is.
    """

    def __init__(self) -> None:
        self.computed = 0
        self.turnover = 0
        self.many: dict[int, tuple[int, int]] = {}
        self.absent: set[int] = set()
        self.below: tuple[dict[int, int], dict[int, int]] = ({}, {})

    @property
    def is_tiered(self) -> bool:
        """Something is on a tier below the GPU."""
        cpu, storage = self.below
        return bool(cpu or storage)

    def on(self, name: int, tier: Layer) -> int:
        """Copies on a tier. A cache that was filled once more since a second copy was heard of has evicted that,
        announced or not."""
        if tier is not Layer.GPU:
            return self.below[tier - 1].get(name, 0)
        if name in self.absent:
            return 0
        copies, at = self.many.get(name, (1, 0))
        if copies > 1 and 0 < self.turnover < self.computed - at:
            del self.many[name]
            return 1
        return copies

    def is_below(self, name: int) -> bool:
        return any(name in below for below in self.below)

    def add(self, name: int, tier: Layer) -> bool:
        """One more; true if it is the first on its tier."""
        copies = self.on(name, tier)
        if tier is not Layer.GPU:
            self.below[tier - 1][name] = min(copies + 1, COUNT_MAX)
        elif copies:
            self.many[name] = min(copies + 1, COUNT_MAX), self.computed
        else:
            self.absent.discard(name)
        return not copies

    def take(self, name: int, tier: Layer) -> bool:
        """One less, if there is one; true if it was the last on its tier."""
        copies = self.on(name, tier)
        if tier is not Layer.GPU:
            if copies > 1:
                self.below[tier - 1][name] = copies - 1
            elif copies:
                del self.below[tier - 1][name]
        elif copies > 2:
            self.many[name] = copies - 1, self.many[name][1]
        elif copies == 2:
            del self.many[name]
        elif copies:
            self.absent.add(name)
        return copies == 1

    def forget(self, name: int) -> list[Layer]:
        """The block is not known any more; the tiers that it was on."""
        tiers = [tier for tier in (Layer.CPU, Layer.STORAGE) if self.below[tier - 1].pop(name, 0)]
        if name not in self.absent:
            tiers.append(Layer.GPU)
        self.absent.discard(name)
        self.many.pop(name, None)
        return tiers
