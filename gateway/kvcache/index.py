"""Which endpoint of a model holds which blocks: one index per model.

Rules: "who holds it" is one integer with a bit per slot, one per tier. Engines' events write those bits through
``Holdings``; predictions and estimates have masks of their own, so that none of the three can erase another's. The
index is bounded, and forgets the least recently used. Everything here is synchronous and quick; ``drop`` alone leaves
work for ``sweep``, in slices.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from gateway.framework import NO_MATCH, Clock, Endpoint, Match, Matches, Observer, Source
from gateway.kvcache.estimate import Estimate
from gateway.kvcache.events import BlockRemoved, BlockStored, Event
from gateway.kvcache.holdings import Change, Holdings, Tier
from gateway.kvcache.keys import BlockKeys, chain, root
from gateway.kvcache.overlay import Overlay
from gateway.kvcache.search import depths
from gateway.kvcache.settings import CacheSettings

SMALLEST_UNIT = 4
"""Tokens a block key at least: below, keys cost more than they tell, and engines' blocks have 8 tokens or more."""


class _Holder:
    """One endpoint in the index."""

    def __init__(self, endpoint: Endpoint, events: bool, unit: int, max_blocks: int) -> None:
        self.endpoint = endpoint
        self.events = events
        self.holdings = Holdings(unit, max_blocks)
        self.estimate = Estimate()

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
        self._holders: dict[int, _Holder] = {}
        self._tiers: tuple[dict[int, int], ...] = ({}, {}, {})
        self._estimated: dict[int, int] = {}
        self._overlay = Overlay(clock, settings.prediction_seconds)
        self._used: set[int] = set()
        self._sweeps: list[Iterator[None]] = []

    @property
    def blocks(self) -> int:
        """Block keys that the engines' events have put here, on the GPU tier."""
        return len(self._tiers[Tier.GPU])

    # endpoints come and go

    def add(self, endpoint: Endpoint, events: bool) -> None:
        self._holders[endpoint.slot] = _Holder(endpoint, events, self.unit, self._settings.max_blocks)

    def set_events(self, slot: int, events: bool) -> None:
        """Whether the endpoint's own events tell what it holds. A change forgets what was known the other way."""
        holder = self._holders.get(slot)
        if holder is not None and holder.events != events:
            self.forget(slot)
            self._holders[slot].events = events

    def forget(self, slot: int) -> None:
        """The endpoint holds nothing any more: its engine restarted, or its history starts again."""
        holder = self._holders.get(slot)
        if holder is None:
            return
        for _ in self._clear(slot, holder):
            pass
        self._holders[slot] = _Holder(holder.endpoint, holder.events, self.unit, self._settings.max_blocks)

    def drop(self, slot: int) -> None:
        """The endpoint is gone. Its bits are cleared by ``sweep``; until then its slot must not be used again."""
        holder = self._holders.pop(slot, None)
        if holder is not None:
            self._sweeps.append(self._clear(slot, holder))

    def sweep(self, budget: int) -> bool:
        """Clear bits of dropped slots, of ``budget`` keys at most; true when none is left."""
        while self._sweeps and budget > 0:
            done = sum(1 for _ in islice(self._sweeps[0], budget))
            if done < budget:
                self._sweeps.pop(0)
            budget -= done
        return not self._sweeps

    # what engines say

    def apply(self, slot: int, event: Event) -> None:
        """One event of the endpoint's stream."""
        if isinstance(event, BlockStored):
            self.stored(slot, event)
        elif isinstance(event, BlockRemoved):
            self.removed(slot, event)
        else:
            self.cleared(slot)

    def stored(self, slot: int, event: BlockStored) -> None:
        holder = self._holders.get(slot)
        if holder is None or not self._fits(event.block_size):
            return
        holder = self._holders[slot]
        changes, problem = holder.holdings.stored(event)
        self._change(slot, changes)
        self._count(holder, "stored", len(event.block_hashes), problem)
        if len(self._tiers[Tier.GPU]) > self._settings.max_blocks:
            self._evict()

    def removed(self, slot: int, event: BlockRemoved) -> None:
        if (holder := self._holders.get(slot)) is not None:
            changes, problem = holder.holdings.removed(event)
            self._change(slot, changes)
            self._count(holder, "removed", len(event.block_hashes), problem)

    def cleared(self, slot: int) -> None:
        """The endpoint's GPU cache was reset."""
        if (holder := self._holders.get(slot)) is not None:
            self._change(slot, holder.holdings.cleared())
            self._overlay.forget(slot)
            self._count(holder, "cleared", 1, "")

    # what requests ask and do

    def keys(self, ids: array[int], count: int, exact: bool, adapter: str | None, salt: str | None) -> BlockKeys:
        """Keys of the whole blocks of a prompt. ``ids``: as ``Prompt.ids``; ``count``: its tokens."""
        if exact and not self._learned:
            for holder in self._holders.values():
                if holder.block_size:
                    self._fits(holder.block_size)
                    break
        return BlockKeys(chain(ids, self.unit, root(exact, adapter, salt)), self.unit, count, exact)

    def match(self, keys: BlockKeys, prompt_tokens: int, endpoints: Sequence[Endpoint]) -> Matches:
        """What each of ``endpoints`` holds of the prompt: exact for the first ``search.EXACT`` blocks."""
        matches = Matches()
        if keys.unit != self.unit:  # the unit changed while the request waited
            return matches
        self._overlay.lapse()
        slots = 0
        for endpoint in endpoints:
            slots |= 1 << endpoint.slot
        found = depths(keys, self._held(), slots)
        for endpoint in endpoints:
            depth = found.get(endpoint.slot)
            if depth and (holder := self._holders.get(endpoint.slot)) is not None:
                matches[endpoint.slot] = self._match(keys, depth, holder, prompt_tokens)
        return matches

    def placed(self, keys: BlockKeys, endpoint: Endpoint) -> None:
        """The prompt was sent to ``endpoint``."""
        holder = self._holders.get(endpoint.slot)
        if holder is None or keys.unit != self.unit:
            return
        bit = 1 << endpoint.slot
        if holder.events and keys.exact:
            gpu = self._tiers[Tier.GPU]
            if len(self._used) > self._settings.max_blocks:
                self._used.clear()
            self._used.update(keys)
            self._overlay.predict(endpoint.slot, [key for key in keys if not gpu.get(key, 0) & bit])
            return
        tokens = endpoint.metrics.kv_capacity or self._settings.capacity_tokens
        new, gone = holder.estimate.sent(keys, max(1, tokens // self.unit))
        _set(self._estimated, new, bit)
        for key in gone:
            _unset(self._estimated, key, bit)

    def settled(self, keys: BlockKeys, endpoint: Endpoint, expected: int, reported: int | None) -> None:
        """The engine has reported ``reported`` cached tokens where ``expected`` were expected.

        What was predicted and did not come true is forgotten at once: the prompt is computed now, and its events, if
        there were to be any, are on their way or here.
        """
        holder = self._holders.get(endpoint.slot)
        if holder is None or reported is None or reported >= expected or keys.unit != self.unit:
            return
        if holder.events and keys.exact:
            for key in keys[reported // self.unit : expected // self.unit]:
                self._overlay.confirmed(endpoint.slot, key)

    # how

    def _held(self) -> Callable[[int], int]:
        gpu, cpu, storage = self._tiers
        others = [masks for masks in (cpu, storage, self._estimated, self._overlay.masks) if masks]
        if not others:
            return lambda key: gpu.get(key, 0)
        if len(others) == 1:
            (other,) = others
            return lambda key: gpu.get(key, 0) | other.get(key, 0)

        def held(key: int) -> int:
            mask = gpu.get(key, 0)
            for masks in others:
                mask |= masks.get(key, 0)
            return mask

        return held

    def _match(self, keys: BlockKeys, depth: int, holder: _Holder, prompt_tokens: int) -> Match:
        slot = holder.endpoint.slot
        block = holder.block_size if holder.block_size >= self.unit else self.unit
        whole = depth * self.unit // block * block
        if not whole:
            return NO_MATCH
        depth = whole // self.unit
        expected = min(whole, (prompt_tokens - 1) // block * block)
        if not (holder.events and keys.exact):
            return Match(gpu=whole, expected_hit=expected, source=Source.ESTIMATED)
        bit = 1 << slot
        gpu, cpu, storage = self._tiers
        predicted = self._overlay.masks
        on_cpu = on_storage = 0
        source = Source.EVENTS
        if predicted and predicted.get(keys[depth - 1], 0) & bit:
            source = Source.PREDICTED
        if cpu or storage:
            for key in islice(keys, depth):
                if (gpu.get(key, 0) | predicted.get(key, 0)) & bit:
                    continue
                if cpu.get(key, 0) & bit:
                    on_cpu += self.unit
                else:
                    on_storage += self.unit
        return Match(whole - on_cpu - on_storage, on_cpu, on_storage, expected, source)

    def _fits(self, block_size: int) -> bool:
        """Whether blocks of this size can be told in the unit: learned from the first, and it may have to shrink.

        False also where it just did: streams begin anew, and the event comes again.
        """
        if block_size < SMALLEST_UNIT:
            return block_size == 0  # an event without tokens
        if not self._learned:
            self._learned = True
            if block_size != self.unit:
                self._new_unit(block_size)
        elif block_size % self.unit:
            smaller = math.gcd(block_size, self.unit)
            if smaller < SMALLEST_UNIT:
                return False
            self._new_unit(smaller)
            self.on_new_unit()
            return False
        return True

    def _new_unit(self, unit: int) -> None:
        self.unit = unit
        for slot in list(self._holders):
            self.forget(slot)

    def _change(self, slot: int, changes: Iterable[Change]) -> None:
        bit = 1 << slot
        for tier, key, held in changes:
            masks = self._tiers[tier]
            if held:
                masks[key] = masks.get(key, 0) | bit
                if tier is Tier.GPU:
                    self._overlay.confirmed(slot, key)
            else:
                _unset(masks, key, bit)

    def _clear(self, slot: int, holder: _Holder) -> Iterator[None]:
        """Clear all bits of a slot, yielding after each key."""
        bit = 1 << slot
        self._overlay.forget(slot)
        for key in list(holder.estimate):
            _unset(self._estimated, key, bit)
            yield
        for tier, key in list(holder.holdings.keys()):
            _unset(self._tiers[tier], key, bit)
            yield
        self._observer.kv_blocks(self._model, self.blocks)

    def _evict(self) -> None:
        """Forget the oldest keys; one that a request has used since gets a second chance, once."""
        gpu = self._tiers[Tier.GPU]
        while len(gpu) > self._settings.max_blocks:
            key = next(iter(gpu))
            mask = gpu.pop(key)
            if key in self._used:
                self._used.discard(key)
                gpu[key] = mask

    def _count(self, holder: _Holder, kind: str, count: int, problem: str) -> None:
        self._observer.kv_events(holder.endpoint.name, kind, count)
        if problem:
            self._observer.kv_events(holder.endpoint.name, problem, 1)
        self._observer.kv_blocks(self._model, self.blocks)


def _set(masks: dict[int, int], keys: Iterable[int], bit: int) -> None:
    for key in keys:
        masks[key] = masks.get(key, 0) | bit


def _unset(masks: dict[int, int], key: int, bit: int) -> None:
    mask = masks.get(key)
    if mask is None:
        return
    mask &= ~bit
    if mask:
        masks[key] = mask
    else:
        del masks[key]
