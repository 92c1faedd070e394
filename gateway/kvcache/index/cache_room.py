"""How much room each engine's cache has left, and what it will have evicted when it starts a request."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.kvcache.index.block_table import BlockChunk
from gateway.kvcache.index.endpoint_state import EndpointState
from gateway.kvcache.index.matching import NOTHING


class CacheRoom:
    """``tokens_left``: slot -> tokens, as ``Matches.room``; without endpoints that have none left, or of which it is
    not known. ``sizeless``: slot -> endpoints without a known capacity; ``changed``: those that were not measured since
    what they hold has changed. ``refresh`` looks at both: it costs as much as an event."""

    def __init__(self) -> None:
        self.tokens_left: dict[int, int] = {}
        self.sizeless: dict[int, EndpointState] = {}
        self.changed: dict[int, EndpointState] = {}

    def remove(self, slot: int) -> None:
        """The endpoint is gone."""
        self.tokens_left.pop(slot, None)
        self.sizeless.pop(slot, None)
        self.changed.pop(slot, None)

    def refresh(self) -> None:
        """Measure the endpoints that have changed, and those whose engines have reported their capacity since."""
        known = [one for one in self.sizeless.values() if one.endpoint.metrics.kv_capacity]
        for state in (*known, *self.changed.values()):
            self.measure(state)
        self.changed.clear()

    def measure(self, state: EndpointState) -> None:
        """What is held has changed, or how complete the events are. Where they report all that the engine keeps, there
        is room for the rest of its capacity."""
        metrics, blocks = state.endpoint.metrics, state.blocks
        slot, room, size = state.endpoint.slot, 0, metrics.kv_capacity
        block_size = blocks.block_size or metrics.block_size
        blocks.copies.turnover = size // block_size if block_size else 0
        self.sizeless.pop(slot, None)
        if state.events and state.events_seen and not state.replaying and not state.partial:
            room = size - len(blocks.known) * block_size
            if not size:
                self.sizeless[slot] = state
        if room > 0:
            self.tokens_left[slot] = room
        else:
            self.tokens_left.pop(slot, None)

    def next_evicted(self, state: EndpointState, unit: int) -> Mapping[BlockChunk, int]:
        """Chunk -> bits that the endpoint will have evicted when it starts a request that is placed now: the prompts
        that are under way there take their room first. Empty where that is not known, or where evicted GPU blocks are
        kept on tiers below. ``unit``: tokens of a block key."""
        endpoint = state.endpoint
        load = endpoint.load
        under_way = load.unallocated_tokens
        if under_way <= 0 or state.partial or not endpoint.metrics.kv_capacity or state.blocks.copies.is_tiered:
            return NOTHING
        # Each request fills its last block only in part, and begins another for its answer.
        under_way += load.requests * state.block_size
        over = under_way - self.tokens_left.get(endpoint.slot, 0)
        return state.blocks.order.next_out(-(-over // unit)) if over > 0 else NOTHING
