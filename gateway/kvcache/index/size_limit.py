"""Bounds the size of an index: a large one packs old hashes, a full one evicts the oldest blocks."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.kvcache.index.endpoint_state import EndpointState
from gateway.kvcache.index.hash_map import Packing

EVICT = 500
"""Blocks that are evicted at once when the index is full, or one in so many of a small one: 1 ms of work."""

PACK = 2048
"""Hashes of the endpoint whose events come that are packed at once: 1 ms of work, and more than mostly come."""

PACK_OTHER = 512
"""The same of one other endpoint after the other, so that those without events are packed, too."""


class SizeLimit:
    """Of one index. ``states``: all that are in it. ``most``: blocks, counted for each endpoint that holds one, and for
    removed endpoints until they have left the table. ``total``: blocks counted."""

    def __init__(self, states: Mapping[int, EndpointState], most: int, packing: Packing) -> None:
        self._states = states
        self._most = most
        self._packing = packing
        self.total = 0
        self._turn = 0
        self._free = min(most, packing.above)

    def update(self, state: EndpointState) -> int:
        """What the endpoint holds has changed; returns by how many blocks."""
        size = state.blocks.size
        grown = size - state.counted
        self.total += grown
        state.counted = size
        return grown

    def enforce(self, state: EndpointState, now: int) -> None:
        """Keep the limit, after events of this endpoint. ``now``: in the index's count of placements."""
        if self.total <= self._free and len(state.blocks.known.recent) <= self._packing.most:
            return
        if self.total > self._most:
            largest = max(self._states.values(), key=lambda other: other.counted)
            several = min(EVICT, self._most // EVICT)
            largest.blocks.drop_oldest(max(self.total - self._most, several), now)
            self.update(largest)
        if self.total <= self._packing.above:
            state.blocks.pack(self._packing, PACK, large=False)
        else:
            state.blocks.pack(self._packing, PACK)
            states = list(self._states.values())
            self._turn %= len(states)
            if not states[self._turn].blocks.pack(self._packing, PACK_OTHER):
                self._turn += 1

    def release(self, state: EndpointState, most: int | None = None) -> None:
        """So many blocks of a removed endpoint have left the table; None: all."""
        count = state.counted if most is None else min(most, state.counted)
        state.counted -= count
        self.total -= count
