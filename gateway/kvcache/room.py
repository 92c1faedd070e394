"""How much room each engine's cache has left, and what it will have evicted when it comes to a request."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.kvcache.eviction import NOTHING
from gateway.kvcache.holder import Holder
from gateway.kvcache.shelf import Stretch


class Room:
    """``left``: as ``Matches.room``: tokens, by slot, without endpoints that have none and those of which it is not
    known."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self._sizeless: dict[int, Holder] = {}  # whose engines have not yet reported how much they can hold

    def drop(self, slot: int) -> None:
        """The endpoint is gone."""
        self.left.pop(slot, None)
        self._sizeless.pop(slot, None)

    def look(self) -> None:
        """Measure those whose engines have reported their size since."""
        for holder in [one for one in self._sizeless.values() if one.endpoint.metrics.kv_capacity]:
            self.measure(holder)

    def measure(self, holder: Holder) -> None:
        """Where its engine's events have told of all that it keeps, there is room for the rest. What is held has
        changed, or how far that is known."""
        slot, room, size = holder.endpoint.slot, 0, holder.endpoint.metrics.kv_capacity
        holdings, block_size = holder.holdings, holder.block_size
        holdings.has_room(size // block_size if block_size else 0)
        self._sizeless.pop(slot, None)
        if holder.events and holder.heard and not holder.reading and not holder.partial:
            room = size - len(holdings) * block_size
            if not size:
                self._sizeless[slot] = holder
        if room > 0:
            self.left[slot] = room
        else:
            self.left.pop(slot, None)

    def going(self, holder: Holder, unit: int) -> Mapping[Stretch, int]:
        """What the endpoint will have evicted when it comes to a request that is placed now: room for the prompts that
        are under way there is taken first. Nothing, where that is not known, or where what the GPU evicts is kept
        below. ``unit``: tokens of a block key."""
        endpoint = holder.endpoint
        load = endpoint.load
        under_way = load.unallocated_tokens
        if under_way <= 0 or holder.partial or not endpoint.metrics.kv_capacity or holder.holdings.is_tiered:
            return NOTHING
        # Each request fills its last block in part only, and begins another for its answer.
        under_way += load.requests * holder.block_size
        over = under_way - self.left.get(endpoint.slot, 0)
        return holder.holdings.order.next_out(-(-over // unit)) if over > 0 else NOTHING
