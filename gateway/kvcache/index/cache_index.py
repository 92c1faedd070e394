"""Which endpoint of a model holds which blocks: one index per model.

Rules: all keys are in one block table, in which an endpoint has a column for each kind of knowledge, so that events,
predictions and approximations cannot erase one another. The index is bounded, and drops the least recently used blocks.
Everything here is synchronous and quick.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Generator, Iterator, Sequence
from enum import Enum
from itertools import chain as join

from gateway.core.observer import Observer
from gateway.core.prompt import PrefixedIds, Prompt
from gateway.framework import Clock, Endpoint
from gateway.framework.match import Matches
from gateway.kvcache.index.block_events import BlockRemoved, BlockStored, Event, is_keyed, is_tail
from gateway.kvcache.index.endpoint_state import EndpointState
from gateway.kvcache.index.hash_map import PACKING, Packing
from gateway.kvcache.index.holders import BELOW, ON_GPU, PREDICTED_ONLY, holders
from gateway.kvcache.index.kept_estimates import KeptEstimates
from gateway.kvcache.index.key_cache import RUN, KeyCache
from gateway.kvcache.index.keys import PLAIN_ROOTS, BlockKeys, chain, chain_with_media, root
from gateway.kvcache.index.matching import NOTHING, add_matches, deeper, match_approximate, match_one
from gateway.kvcache.index.reported_endpoints import ReportedEndpoints
from gateway.kvcache.index.use import BlockUse
from gateway.kvcache.settings import CacheSettings

SMALLEST_UNIT = 4
"""Tokens of a block key at least: smaller keys cost more than they tell, and engines' blocks have 8 tokens or more."""

UNKNOWN_CAPACITY = 400_000
"""Tokens of an endpoint without events whose engine does not report its capacity: a 70B model on four H100. Where that
is wrong, ``kv_capacity_tokens`` of the endpoint says better."""

SWEEP = 64
"""Blocks that each message and each placement clears in released columns: some 30 us, and sooner or later all."""


class Applied(Enum):
    """What became of a slice of events."""

    ALL = "all"
    REKEYED = "rekeyed"
    """An engine has another block size: the index has a smaller unit from now on, and is empty. The rest of the events
    was not applied. The event streams of all its endpoints must begin anew."""


class CacheIndex(ReportedEndpoints):
    """The index of one model. ``unit``: tokens of a block key; it may become smaller.

    ``packing``: when hashes are packed.
    """

    def __init__(
        self, settings: CacheSettings, model: str, clock: Clock, observer: Observer, packing: Packing = PACKING
    ) -> None:
        super().__init__(settings, model, clock, observer, packing)
        self._unit_known = False
        self._key_cache = KeyCache()
        self._placements = 0

    # events

    def apply(self, slot: int, events: Sequence[Event]) -> Applied:
        """Apply events of the endpoint's stream, in order."""
        state = self._states.get(slot)
        if state is None:
            return Applied.ALL
        if state.reset_work is not None:
            self._finish_reset(state)
        at, count = 0, len(events)
        while at < count:
            event = events[at]
            if not isinstance(event, BlockStored) or len(event.block_hashes) == 1:
                at, stored, removed = state.blocks.apply_simple(events, at)
                if stored:
                    state.counts["stored"] += stored
                    state.events_seen = True
                if removed:
                    state.counts["removed"] += removed
                if at == count:
                    break
                event = events[at]
            at += 1
            if isinstance(event, BlockStored):
                if not self._apply_stored(state, event):
                    return Applied.REKEYED
            elif isinstance(event, BlockRemoved):
                state.counts["removed"] += len(event.block_hashes)
                if problem := state.blocks.remove(event):
                    state.counts[problem] += 1
            else:
                self.reset_gpu(slot)
                self._finish_reset(self._states[slot])
            state = self._states[slot]
        self._update_size(state)
        return Applied.ALL

    def reset_gpu(self, slot: int) -> Iterator[None]:
        """The endpoint's GPU cache was reset; what it has on other tiers stays.

        Matches know at once; the rest is work in small steps, which the caller iterates over. What is left of it is
        done before other events are applied, and need not be done if the endpoint goes.
        """
        state = self._states.get(slot)
        if state is None:
            return iter(())
        self._finish_reset(state)
        state.counts["cleared"] += 1
        work = state.blocks.clear()
        if work is None:
            self.clear(slot)
            self._states[slot].partial = state.partial
            self.set_replaying(slot, state.replaying)  # a reset may be part of the past
            return iter(())
        state.reset_work = self._clear_gpu(state, work)
        self._coverage.update(state, self.unit)
        return state.reset_work

    # requests

    def keys(self, prompt: Prompt, adapter: str | None = None, salt: str | None = None) -> BlockKeys:
        """Keys of the whole blocks of ``prompt``. ``adapter``, ``salt``: of its request."""
        if not self._unit_known:
            self._fit_units()
        unit, ids, exact, media = self.unit, prompt.ids, prompt.exact, prompt.media
        first = root(exact, adapter, salt) if adapter or salt else PLAIN_ROOTS[exact]
        if isinstance(ids, PrefixedIds):  # which has no media
            known, left = self._key_cache.of_prefix(ids, unit, first)
            keys = known[:]
            ids, first = left + ids.rest, keys[-1] if keys else first
        else:
            keys = array("Q")
        step = self._key_cache.keys if len(ids) >= RUN else chain  # a prompt that fills no run is in none
        keys.extend(chain_with_media(ids, unit, first, media, step) if media else step(ids, unit, first))
        return BlockKeys(keys, unit, prompt.count, exact, prompt.whole, prompt.differing)

    def match(self, keys: BlockKeys, prompt_tokens: int, endpoints: Sequence[Endpoint]) -> Matches:
        """What each of ``endpoints`` holds of the prompt.

        By its engine's events and by predictions where events are followed, else by what was routed there
        (approximate); by whichever is more where the events are partial.
        """
        matches = Matches()
        matches.room = self._room.tokens_left
        if keys.unit != self.unit:  # the unit changed while the request waited
            return matches
        if (now := self._clock.monotonic()) >= self._predictions.due_at:
            self._predictions.expire(now)
        if self._room.sizeless or self._room.changed:
            self._room.refresh()
        coverage = self._coverage
        asked = coverage.asked_bits if endpoints is coverage.asked else coverage.ask(endpoints)
        followed = asked & coverage.followed if keys.exact else 0
        if keys.differing:
            followed &= ~coverage.bits_of(keys.differing)
        if followed:
            self._match_followed(matches, keys, prompt_tokens, followed)
        if others := asked & ~followed:
            matches.update(match_approximate(keys, prompt_tokens, self._table, others, coverage.candidates))
        both = followed & ~coverage.resetting
        if keys.whole:
            both &= coverage.partial
        if both:
            probably = match_approximate(keys, prompt_tokens, self._table, both, coverage.candidates)
            for slot, match in probably.items():
                if match.tokens > matches[slot].tokens:
                    matches[slot] = deeper(matches[slot], match)
        return matches

    def covers(self, slot: int, keys: BlockKeys) -> bool:
        """Whether the endpoint's events report what it holds of a prompt; else it is approximated."""
        state = self._states.get(slot)
        return state is not None and state.covered_by_events(keys)

    def placed(self, keys: BlockKeys, endpoint: Endpoint) -> BlockUse:
        """The prompt is sent to ``endpoint``. The caller tells the returned object how the request goes on."""
        state = self._states.get(endpoint.slot)
        if state is None or keys.unit != self.unit:
            return BlockUse(self, keys, endpoint)
        if self._columns.sweeps:
            self._columns.sweep(SWEEP)
        self._placements += 1
        # As ``EndpointState.fully_covered``, without four calls for each request; a test holds them equal.
        followed = state.events and keys.exact and endpoint.name not in keys.differing
        if not (followed and state.events_seen and keys.whole and not (state.replaying or state.partial)):
            state.approximate.add(keys.values, self._capacity(endpoint))
        if not followed:
            return BlockUse(self, keys, endpoint)
        column, gpu = state.column, state.reset_work is None
        prediction = self._predictions.predict(column, keys.values, self._placements, gpu=gpu)
        order = state.blocks.order
        order.use(prediction)
        return BlockUse(self, keys, endpoint, prediction, order)

    # estimates that outlive the process

    def recall_estimates(self, kept: KeptEstimates) -> int:
        """Believe what was kept of endpoints whose engines are the same processes; before any request is placed.
        Returns of how many."""
        self._fit_units()
        if kept.unit != self.unit or self._table.size or any(state.events for state in self._states.values()):
            return 0
        states, count = {state.endpoint.name: state for state in self._states.values()}, 0
        for one in kept.endpoints:
            state = states.get(one.name)
            if state is not None and state.endpoint.engine.up and state.endpoint.engine.started == one.started:
                state.approximate.restore(one.runs, one.believed, self._capacity(state.endpoint))
                count += 1
        return count

    # parts of the above

    def _fit_units(self) -> None:
        for size in [state.block_size for state in self._states.values() if state.block_size]:
            self._fit_unit(size)

    def _capacity(self, endpoint: Endpoint) -> int:
        """Blocks for which an endpoint without events has room."""
        return max(1, (endpoint.metrics.kv_capacity or UNKNOWN_CAPACITY) // self.unit)

    def _match_followed(self, matches: Matches, keys: BlockKeys, prompt_tokens: int, followed: int) -> None:
        """Enter what endpoints hold by their events, and will by what was just sent there."""
        coverage, table, values = self._coverage, self._table, keys.values
        candidates, resetting = coverage.candidates, followed & coverage.resetting
        groups, special = holders(
            values, table, followed ^ resetting, ON_GPU, BELOW if followed & coverage.tiered else ()
        )
        if resetting:
            groups += holders(values, table, resetting, PREDICTED_ONLY, BELOW)[0]
        held = 0
        for mask, *_ in groups:
            held |= mask
        if not held:
            return
        special |= resetting | coverage.uneven | self._mark_crowded(held)
        left = add_matches(matches, groups, keys, prompt_tokens, candidates, special)
        if not left:
            return
        path = table.path(values)
        for mask, depth in left:
            for candidate in candidates.of(mask):
                if (match := match_one(path, candidate, depth, keys.unit, prompt_tokens)) is not None:
                    matches[candidate.slot] = match

    def _mark_crowded(self, held: int) -> int:
        """The endpoints of the bitmap ``held`` that will have evicted something when they start a prompt, which their
        candidates are told."""
        crowded = 0
        for state in self._states.values():
            if held & state.bit and state.endpoint.load.requests:
                state.candidate.evicted = evicted = self._room.next_evicted(state, self.unit)
                if evicted:
                    crowded |= state.bit
            elif state.candidate.evicted:
                state.candidate.evicted = NOTHING
        return crowded

    def _clear_gpu(self, state: EndpointState, work: Iterator[None]) -> Generator[None]:
        """Work through a reset in small steps, while the endpoint stays."""
        if not state.replaying:  # a reset in the past says nothing of what was sent since then
            yield from join(self._predictions.remove_all(state.column), state.approximate.remove_all())
        yield from work
        state.reset_work = None
        self._coverage.update(state, self.unit)
        self._update_size(state)
        self.report_counts(state.endpoint.slot)

    def _finish_reset(self, state: EndpointState) -> None:
        """Work through what is left of a reset."""
        for _ in state.reset_work or ():
            pass

    def _update_size(self, state: EndpointState) -> None:
        """What the endpoint holds has changed. Sweeps as much as it grew, so that what waits for that does not grow."""
        limit = self._limit
        grown = limit.update(state)
        if state.evidence != state.last_evidence:
            self._coverage.update(state, self.unit)
        if self._columns.sweeps:
            self._columns.sweep(SWEEP + max(0, grown))
        limit.enforce(state, self._placements)
        if state.blocks.copies.turnover:
            self._room.changed[state.endpoint.slot] = state  # measured when a request asks for it
        else:
            self._room.measure(state)

    def _apply_stored(self, state: EndpointState, event: BlockStored) -> bool:
        """Apply an event that is not a simple one. False: the unit changed, and the index is empty."""
        slot = state.endpoint.slot
        problem = state.blocks.problem(event)
        keyed = not problem and is_keyed(event)
        if keyed and event.block_size != state.blocks.block_size and is_tail(event, state.block_size):
            problem, keyed = "partial-tail", False
        if keyed and (not self._unit_known or event.block_size % self.unit):
            problem = self._fit_unit(event.block_size)
            state = self._states[slot]
        if not problem:
            if keyed:
                problem = state.blocks.store_keyed(event, copies=not (state.awaited_reports and state.is_report(event)))
                state.events_seen = True
            else:
                problem = state.blocks.store_tier(event)
            state.counts["stored"] += len(event.block_hashes)
        if problem:
            state.counts[problem] += 1
        return problem != "new-unit"

    def _fit_unit(self, block_size: int) -> str:
        """An engine has blocks of this size: make the unit fit. Returns a label why its blocks have no keys (yet), or
        ``""``."""
        unit = math.gcd(block_size, self.unit) if self._unit_known else block_size
        if unit < SMALLEST_UNIT:
            return "block-size"
        known, self._unit_known = self._unit_known, True
        if unit == self.unit:
            return ""
        self.unit = unit
        for slot, state in list(self._states.items()):
            self.clear(slot)
            self._states[slot].reannounces_left = state.reannounces_left
            self._states[slot].partial = state.partial
            self._coverage.update(self._states[slot], unit)
        return "new-unit" if known else ""
