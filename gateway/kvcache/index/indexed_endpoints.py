"""The endpoints of one index: how they come and go, how far each one's events are known, and what engines report of
their hits.

An endpoint that is cleared gets new columns at once; ``sweep`` clears the old ones in slices, and then they are used
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as join

from gateway.core.observer import Observer
from gateway.framework import Clock, Endpoint
from gateway.kvcache.index.block_table import BlockTable
from gateway.kvcache.index.cache_room import CacheRoom
from gateway.kvcache.index.columns import Columns
from gateway.kvcache.index.coverage import Coverage
from gateway.kvcache.index.endpoint_state import EndpointState
from gateway.kvcache.index.hash_map import Packing
from gateway.kvcache.index.kept_estimates import KeptEstimates
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.index.predictions import Predictions
from gateway.kvcache.index.size_limit import SizeLimit
from gateway.kvcache.settings import CacheSettings


class IndexedEndpoints:
    """``unit``: tokens of a block key. ``packing``: when hashes are packed."""

    def __init__(self, settings: CacheSettings, model: str, clock: Clock, observer: Observer, packing: Packing) -> None:
        self.unit = settings.block_size
        self._settings = settings
        self._model = model
        self._clock = clock
        self._observer = observer
        self._states: dict[int, EndpointState] = {}
        self._coverage = Coverage(self._states)
        self._columns = Columns()
        self._table = BlockTable()
        self._predictions = Predictions(self._table, clock)
        self._limit = SizeLimit(self._states, settings.max_blocks, packing)
        self._room = CacheRoom()

    @property
    def blocks(self) -> int:
        """Block keys in the table, whoever holds them."""
        return self._table.size

    def add(self, endpoint: Endpoint, events: bool) -> None:
        """``events``: the engine's events will be followed. Until they have begun, its blocks are approximated."""
        self.remove(endpoint.slot)
        self._start(endpoint, events, events_seen=False)

    def set_events(self, slot: int, events: bool) -> None:
        """Whether the endpoint's events are followed. A change clears what is known of it."""
        state = self._states.get(slot)
        if state is not None and state.events != events:
            self.remove(slot)
            self._start(state.endpoint, events, events_seen=False)

    def clear(self, slot: int) -> None:
        """The endpoint holds nothing any more: its engine restarted, or its history is read from the beginning."""
        state = self._states.get(slot)
        if state is not None:
            self.remove(slot)
            self._start(state.endpoint, state.events, state.events_seen)

    def remove(self, slot: int) -> None:
        """The endpoint is gone. What ``sweep`` has yet to clear of it is never matched again."""
        self.report_counts(slot)
        state = self._states.pop(slot, None)
        self._room.remove(slot)
        if state is not None:
            self._coverage.remove(state)
            if state.reset_work is not None:
                state.reset_work.close()
            self._columns.release(state.column, self._clear_columns(state))

    def sweep(self, budget: int) -> bool:
        """Clear released columns, in ``budget`` steps at most; true when none is left."""
        return self._columns.sweep(budget)

    def set_complete(self, slot: int) -> None:
        """The endpoint's events report all that it holds, even if they have reported no block yet."""
        if (state := self._states.get(slot)) is not None:
            state.events_seen = True
            state.partial = False
            state.reannounces_left = 0
            self._coverage.update(state, self.unit)
            self._room.measure(state)

    def set_replaying(self, slot: int, past: bool) -> None:
        """Whether the endpoint's history is being replayed. That describes the past, so that the endpoint's blocks are
        approximated until it ends."""
        if (state := self._states.get(slot)) is not None:
            state.replaying = past
            self._coverage.update(state, self.unit)
            self._room.measure(state)

    def set_partial(self, slot: int) -> None:
        """The endpoint may hold blocks that its events have not reported: it is approximated, too, from now on. As many
        prompts as are configured may ask its engine to announce their blocks again."""
        if (state := self._states.get(slot)) is not None:
            state.partial = True
            state.reannounces_left = self._settings.reannounce
            self._coverage.update(state, self.unit)
            self._room.measure(state)

    def report_counts(self, slot: int) -> None:
        """Report to the observer what the endpoint's events came to since the last time: once a message, not an
        event."""
        if (state := self._states.get(slot)) is not None:
            for kind, count in state.counts.items():
                self._observer.kv_events(state.endpoint.name, kind, count)
            state.counts.clear()
            self._observer.kv_blocks(self._model, self._table.size)

    def settled(self, keys: BlockKeys, endpoint: Endpoint, expected: int, reported: int | None) -> None:
        """The engine has reported ``reported`` cached tokens where ``expected`` were expected.

        If fewer, counts of copies from its events are corrected, and an approximation assumes less of the engine's
        capacity.
        """
        state = self._states.get(endpoint.slot)
        if state is None or reported is None or keys.unit != self.unit:
            return
        if not state.fully_covered(keys):
            # If not all tokens are known, what stands in for them may be longer than they are.
            served = reported >= expected or (not keys.whole and 2 * reported >= expected)
            state.approximate.adjust(expected, served)
        if reported < expected and state.covered_by_events(keys):
            state.recomputed(keys, reported // self.unit, expected // self.unit)

    def keep_estimates(self) -> KeptEstimates:
        """What endpoints without events are believed to hold; nothing if any endpoint has events."""
        states = list(self._states.values())
        kept = [] if any(state.events for state in states) else [state.keep() for state in states]
        return KeptEstimates(self.unit, tuple(one for one in kept if one.runs))

    def _start(self, endpoint: Endpoint, events: bool, events_seen: bool) -> None:
        """The endpoint holds nothing, in new columns."""
        state = EndpointState(
            endpoint, events, events_seen, self._columns.allocate(), self._table, self.unit, self._predictions
        )
        self._states[endpoint.slot] = state
        self._coverage.add(state, self.unit)
        self._room.measure(state)

    def _clear_columns(self, state: EndpointState) -> Iterator[None]:
        """Clear all columns of an endpoint that was removed, in small steps."""
        for _ in state.blocks.remove_all():
            self._limit.release(state, 1)
            yield
        self._limit.release(state)
        yield from join(state.approximate.remove_all(), self._predictions.remove_all(state.column))
        self._observer.kv_blocks(self._model, self.blocks)
