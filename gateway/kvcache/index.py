"""Which endpoint of a model holds which blocks: one index per model.

Rules: "who holds it" is one integer with a bit per endpoint, one per tier. Engines' events write those bits through
``Holdings``; predictions and estimates have masks of their own, so that none of the three can erase another's. An
endpoint that forgets everything gets another bit at once; the old one is cleared by ``sweep``, in slices, and then
used again. The index is bounded, and forgets the least recently used. Everything here is synchronous and quick.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

from gateway.framework import Clock, Endpoint, Matches, Observer
from gateway.kvcache.chains import Chains
from gateway.kvcache.estimate import Estimate
from gateway.kvcache.events import BlockRemoved, BlockStored, Event
from gateway.kvcache.holdings import Holdings, Tier, is_named, unset
from gateway.kvcache.keys import BlockKeys, root
from gateway.kvcache.matching import Candidate, match_estimated, match_told
from gateway.kvcache.overlay import Overlay
from gateway.kvcache.settings import CacheSettings

SMALLEST_UNIT = 4
"""Tokens a block key at least: below, keys cost more than they tell, and engines' blocks have 8 tokens or more."""

SWEEP = 64
"""Keys of forgotten endpoints that each event and each placement clears: some 30 us, and sooner or later all."""

EVICT = 1000
"""One in so many blocks is forgotten at once when the index is full: 1 ms of work, and rarely."""


class _Holder:
    """One endpoint in the index, since it last began anew.

    ``place``: of its bit. ``events``: its engine's events are followed; ``heard``: and have told of blocks at some
    time, so that they can be believed to come. ``counted``: its part of the index's size.
    """

    def __init__(self, endpoint: Endpoint, events: bool, heard: bool, place: int, holdings: Holdings) -> None:
        self.endpoint = endpoint
        self.events = events
        self.heard = heard
        self.place = place
        self.holdings = holdings
        self.estimate = Estimate()
        self.counted = 0
        self.told: Counter[str] = Counter()

    @property
    def block_size(self) -> int:
        """Tokens of one of the engine's blocks; 0 if it has not told."""
        return self.holdings.block_size or self.endpoint.metrics.block_size


class CacheIndex:
    """The index of one model. ``unit``: tokens of a block key.

    ``on_new_unit`` is called when the unit had to change: everything that was known is gone, and streams must replay.
    """

    def __init__(self, settings: CacheSettings, model: str, clock: Clock, observer: Observer) -> None:
        self.unit = settings.block_size
        self.on_new_unit: Callable[[], None] = lambda: None
        self._settings = settings
        self._model = model
        self._observer = observer
        self._learned = False
        self._chains = Chains()
        self._holders: dict[int, _Holder] = {}
        self._places = 0
        self._free: list[int] = []
        self._tiers: tuple[dict[int, int], ...] = ({}, {}, {})
        self._estimated: dict[int, int] = {}
        self._overlay = Overlay(clock, settings.prediction_seconds)
        self._total = 0
        self._used: set[int] = set()
        self._sweeps: list[Iterator[None]] = []

    @property
    def blocks(self) -> int:
        """Block keys that the engines' events have put here, on the GPU tier."""
        return len(self._tiers[Tier.GPU])

    # endpoints come and go

    def add(self, endpoint: Endpoint, events: bool) -> None:
        """``events``: its engine's events will tell what it holds; until they have begun to, it is estimated."""
        self.drop(endpoint.slot)
        self._begin(endpoint, events, heard=False)

    def set_events(self, slot: int, events: bool) -> None:
        """Whether the endpoint's events are followed. A change forgets what was known the other way."""
        holder = self._holders.get(slot)
        if holder is not None and holder.events != events:
            self.drop(slot)
            self._begin(holder.endpoint, events, heard=False)

    def forget(self, slot: int) -> None:
        """The endpoint holds nothing any more: its engine restarted, or its history starts again."""
        holder = self._holders.get(slot)
        if holder is not None:
            self.drop(slot)
            self._begin(holder.endpoint, holder.events, holder.heard)

    def drop(self, slot: int) -> None:
        """The endpoint is gone. What ``sweep`` has yet to clear of it is never matched again."""
        self.tell(slot)
        holder = self._holders.pop(slot, None)
        if holder is not None:
            self._total -= holder.counted
            self._overlay.forget(holder.place)
            self._sweeps.append(self._clear(holder))

    def sweep(self, budget: int) -> bool:
        """Clear bits of what was dropped and forgotten, of ``budget`` keys at most; true when none is left."""
        while self._sweeps and budget > 0:
            done = sum(1 for _ in islice(self._sweeps[0], budget))
            if done < budget:
                self._sweeps.pop(0)
            budget -= done
        return not self._sweeps

    # what engines say

    def believe(self, slot: int) -> None:
        """The endpoint's events come, even if they have told of no block yet: it is estimated no more."""
        if (holder := self._holders.get(slot)) is not None:
            holder.heard = True

    def apply(self, slot: int, event: Event) -> None:
        """One event of the endpoint's stream."""
        if isinstance(event, BlockStored):
            self.stored(slot, event)
        elif isinstance(event, BlockRemoved):
            self.removed(slot, event)
        else:
            self.cleared(slot)
        if self._sweeps:
            self.sweep(SWEEP)

    def stored(self, slot: int, event: BlockStored) -> None:
        holder = self._holders.get(slot)
        if holder is None:
            return
        problem = holder.holdings.problem(event)
        named = not problem and is_named(event)
        if named and (not self._learned or event.block_size % self.unit):
            problem = self._learn(event.block_size)
            holder = self._holders[slot]
        if not problem:
            if named:
                keys, problem = holder.holdings.named(event)
                self._overlay.confirmed(holder.place, keys)
                holder.heard = True
                self._recount(holder)
            else:
                problem = holder.holdings.stored(event)
            holder.told["stored"] += len(event.block_hashes)
        if problem:
            holder.told[problem] += 1

    def removed(self, slot: int, event: BlockRemoved) -> None:
        holder = self._holders.get(slot)
        if holder is None:
            return
        holder.told["removed"] += len(event.block_hashes)
        if problem := holder.holdings.removed(event):
            holder.told[problem] += 1
        self._recount(holder)

    def cleared(self, slot: int) -> None:
        """The endpoint's GPU cache was reset; what it has on other tiers stays."""
        holder = self._holders.get(slot)
        if holder is None:
            return
        holder.told["cleared"] += 1
        if holder.holdings.only_gpu:
            self.forget(slot)
            return
        holder.holdings.cleared()
        self._overlay.forget(holder.place)
        self._recount(holder)

    def tell(self, slot: int) -> None:
        """Tell the observer what the endpoint's events came to since the last time: once a message, not an event."""
        if (holder := self._holders.get(slot)) is not None:
            for kind, count in holder.told.items():
                self._observer.kv_events(holder.endpoint.name, kind, count)
            holder.told.clear()
            self._observer.kv_blocks(self._model, self.blocks)

    # what requests ask and do

    def keys(self, ids: array[int], count: int, exact: bool, adapter: str | None, salt: str | None) -> BlockKeys:
        """Keys of the whole blocks of a prompt. ``ids``: as ``Prompt.ids``; ``count``: its tokens."""
        if not self._learned:
            for size in [holder.block_size for holder in self._holders.values() if holder.block_size]:
                self._learn(size)
        return BlockKeys(self._chains.keys(ids, self.unit, root(exact, adapter, salt)), self.unit, count, exact)

    def match(self, keys: BlockKeys, prompt_tokens: int, endpoints: Sequence[Endpoint]) -> Matches:
        """What each of ``endpoints`` holds of the prompt: exact for the first ``search.EXACT`` blocks.

        By its engine's events and by predictions where events come, else by what was routed there.
        """
        matches = Matches()
        if keys.unit != self.unit:  # it changed while the request waited
            return matches
        self._overlay.lapse()
        told: list[Candidate] = []
        estimated: list[Candidate] = []
        for endpoint in endpoints:
            holder = self._holders.get(endpoint.slot)
            if holder is not None:
                candidates = told if self._is_told(holder, keys) else estimated
                candidates.append(Candidate(endpoint.slot, holder.place, holder.block_size))
        if told:
            matches.update(match_told(keys, prompt_tokens, told, self._tiers, self._overlay.masks))
        if estimated:
            matches.update(match_estimated(keys, prompt_tokens, estimated, self._estimated))
        return matches

    def placed(self, keys: BlockKeys, endpoint: Endpoint) -> None:
        """The prompt was sent to ``endpoint``."""
        holder = self._holders.get(endpoint.slot)
        if holder is None or keys.unit != self.unit:
            return
        if self._sweeps:
            self.sweep(SWEEP)
        bit = 1 << holder.place
        if holder.events and keys.exact:
            gpu = self._tiers[Tier.GPU]
            self._overlay.predict(holder.place, [key for key in keys if not gpu.get(key, 0) & bit])
            if self._total * 2 > self._settings.max_blocks:
                if len(self._used) > self._settings.max_blocks:
                    self._used.clear()
                self._used.update(keys)
        if not self._is_told(holder, keys):
            tokens = endpoint.metrics.kv_capacity or self._settings.capacity_tokens
            new, gone = holder.estimate.sent(keys, max(1, tokens // self.unit))
            for key in new:
                self._estimated[key] = self._estimated.get(key, 0) | bit
            for key in gone:
                unset(self._estimated, key, bit)

    def settled(self, keys: BlockKeys, endpoint: Endpoint, expected: int, reported: int | None) -> None:
        """The engine has reported ``reported`` cached tokens where ``expected`` were expected.

        What was predicted and did not come true is forgotten at once: the prompt is computed now, and its events, if
        there were to be any, are on their way or here. What events had said is mended where copies were miscounted.
        """
        holder = self._holders.get(endpoint.slot)
        if holder is None or reported is None or reported >= expected or keys.unit != self.unit:
            return
        if self._is_told(holder, keys):
            missed = keys[reported // self.unit : expected // self.unit]
            self._overlay.confirmed(holder.place, missed)
            holder.holdings.recomputed(set(missed))

    # how

    def _is_told(self, holder: _Holder, keys: BlockKeys) -> bool:
        """Whether the endpoint's events can say what it holds of a prompt."""
        return holder.events and holder.heard and keys.exact

    def _begin(self, endpoint: Endpoint, events: bool, heard: bool) -> None:
        """The endpoint holds nothing, under a bit that nobody has."""
        if self._free:
            place = heappop(self._free)
        else:
            place = self._places
            self._places += 1
        holdings = Holdings(self.unit, self._tiers, 1 << place)
        self._holders[endpoint.slot] = _Holder(endpoint, events, heard, place, holdings)

    def _clear(self, holder: _Holder) -> Iterator[None]:
        """Clear all bits of a holder that is gone, yielding after each key; then its place is free."""
        bit = 1 << holder.place
        for key in holder.estimate:
            unset(self._estimated, key, bit)
            yield
        for key in holder.holdings:
            for masks in self._tiers:
                if masks:
                    unset(masks, key, bit)
            yield
        heappush(self._free, holder.place)
        self._observer.kv_blocks(self._model, self.blocks)

    def _learn(self, block_size: int) -> str:
        """An engine has blocks of this size: fit the unit. Returns why its blocks have no keys (yet), or ``""``."""
        unit = math.gcd(block_size, self.unit) if self._learned else block_size
        if unit < SMALLEST_UNIT:
            return "block-size"
        learned, self._learned = self._learned, True
        if unit == self.unit:
            return ""
        self.unit = unit
        for slot in list(self._holders):
            self.forget(slot)
        if not learned:
            return ""
        self.on_new_unit()
        return "new-unit"

    def _recount(self, holder: _Holder) -> None:
        """Keep the index below its bound: the largest holder loses what is oldest."""
        size = len(holder.holdings)
        if size == holder.counted:
            return
        self._total += size - holder.counted
        holder.counted = size
        if self._total > self._settings.max_blocks:
            largest = max(self._holders.values(), key=lambda other: other.counted)
            excess = self._total - self._settings.max_blocks
            largest.holdings.forget_oldest(max(excess, self._settings.max_blocks // EVICT), self._used)
            self._total += len(largest.holdings) - largest.counted
            largest.counted = len(largest.holdings)
