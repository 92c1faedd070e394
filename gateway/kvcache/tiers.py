"""What one endpoint has on the shelf, tier by tier, where several of its blocks may have the same keys.

They do under two hashes of the same tokens, and where larger blocks begin alike: a place on the shelf has one bit for
all of them, which stays until the last is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.kvcache.eviction import EvictionOrder
from gateway.kvcache.layers import Layer
from gateway.kvcache.names import Named, locations
from gateway.kvcache.shelf import BITS, OFFSET, Shelf, Stretch


class Tiers:
    """Of one endpoint. ``place``: its GPU's on the shelf. ``again``: tier -> location -> blocks that hold it beside the
    first. ``order``: in which it will evict what is on the GPU. ``confirmed``: told of blocks that were predicted, and
    that the engine has told of now."""

    def __init__(self, shelf: Shelf, place: int, confirmed: Callable[[Stretch, int], None]) -> None:
        self.order = EvictionOrder(place)
        self.again: tuple[dict[int, int], ...] = ({}, {}, {})
        self._shelf = shelf
        self._place = place
        self._confirmed = confirmed

    def put(self, tier: Layer, stretch: Stretch, bits: int) -> None:
        """These blocks are on the tier. What was predicted of them is fact now."""
        self.mark(tier, stretch, bits)
        if tier is Layer.GPU:
            self.come_true(stretch, bits)

    def mark(self, tier: Layer, stretch: Stretch, bits: int) -> None:
        """These blocks are on the tier; what was predicted of them still is."""
        had = self._shelf.mark(stretch, self._place + tier, bits)
        if tier is Layer.GPU:
            self.order.stored(stretch, bits)
        while had:
            bit = had & -had
            had ^= bit
            where = stretch.number << BITS | bit.bit_length() - 1
            self.again[tier][where] = self.again[tier].get(where, 0) + 1

    def come_true(self, stretch: Stretch, bits: int) -> None:
        """What was predicted of these blocks is fact now."""
        predicted = self._place + Layer.PREDICTED
        if stretch.full >> predicted & 1 or (stretch.part and predicted in stretch.part):
            self._confirmed(stretch, bits)

    def release(self, tier: Layer, named: Named) -> None:
        """A block's last copy on the tier is gone, and with it its keys, unless other blocks hold them."""
        again = self.again[tier]
        for where in reversed(locations(named)):
            others = again.get(where, 0) if again else 0
            if others > 1:
                again[where] = others - 1
            elif others:
                del again[where]
            else:
                self._shelf.unmark(self._shelf.at(where), self._place + tier, 1 << (where & OFFSET))

    def release_plain(self, gone: Mapping[int, int]) -> None:
        """The same of blocks on the GPU, by stretch's number as bits, where no other blocks hold any key."""
        for number, bits in gone.items():
            self._shelf.unmark(self._shelf.at(number << BITS), self._place, bits)

    def leave(self, named: Named) -> None:
        """Nothing of the endpoint is where the block is, nor around it: all of it is to leave."""
        for where in locations(named):
            stretch = self._shelf.stretches[where >> BITS]
            if stretch is not None:  # another's by now, maybe: then there is nothing of ours in it
                for tier in (Layer.GPU, Layer.CPU, Layer.STORAGE):
                    self._shelf.leave(stretch, self._place + tier)
