"""Which endpoint of a model holds which blocks: one index per model.

Rules: all keys are on one shelf, on which an endpoint has a place for each kind of knowledge, so that what its events
said, what is predicted and what is estimated cannot erase one another. An endpoint that forgets everything gets other
places at once; the old ones are cleared by ``sweep``, in slices, and then used again. The index is bounded, and forgets
the least recently used. Everything here is synchronous and quick.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain as join

from gateway.framework import NOWHERE, Clock, Endpoint, Matches, Medium, Observer
from gateway.kvcache.bound import Bound
from gateway.kvcache.chains import Chains
from gateway.kvcache.events import BlockRemoved, BlockStored, Event, is_named, is_tail
from gateway.kvcache.holder import Holder
from gateway.kvcache.keys import BlockKeys, chain_past, root
from gateway.kvcache.matching import Candidate, deeper, match_estimated, match_told
from gateway.kvcache.names import AGES, Ages
from gateway.kvcache.overlay import Overlay
from gateway.kvcache.places import Places
from gateway.kvcache.room import Room
from gateway.kvcache.settings import CacheSettings
from gateway.kvcache.shelf import Shelf
from gateway.kvcache.use import BlockUse

SMALLEST_UNIT = 4
"""Tokens a block key at least: below, keys cost more than they tell, and engines' blocks have 8 tokens or more."""

SWEEP = 64
"""Blocks of forgotten endpoints that each message and each placement clears: some 30 us, and sooner or later all."""


class CacheIndex:
    """The index of one model. ``unit``: tokens of a block key.

    ``ages``: which engine hashes are packed, and when. ``on_new_unit`` is called when the unit had to change:
    everything that was known is gone, and streams must replay.
    """

    def __init__(
        self, settings: CacheSettings, model: str, clock: Clock, observer: Observer, ages: Ages = AGES
    ) -> None:
        self.unit = settings.block_size
        self.on_new_unit: Callable[[], None] = lambda: None
        self._settings = settings
        self._model = model
        self._observer = observer
        self._learned = False
        self._chains = Chains()
        self._holders: dict[int, Holder] = {}
        self._places = Places()
        self._shelf = Shelf()
        self._overlay = Overlay(self._shelf, clock, settings.prediction_seconds)
        self._placements = 0
        self._bound = Bound(self._holders, settings.max_blocks, ages)
        self._room = Room()

    @property
    def blocks(self) -> int:
        """Block keys that are remembered, whoever holds them."""
        return self._shelf.size

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
        self._room.drop(slot)
        if holder is not None:
            if holder.clearing is not None:
                holder.clearing.close()
            self._places.leave(holder.place, self._leave(holder))

    def sweep(self, budget: int) -> bool:
        """Clear places of what was dropped and forgotten, in ``budget`` steps at most; true when none is left."""
        return self._places.sweep(budget)

    # what engines say

    def believe(self, slot: int) -> None:
        """The endpoint's events come, even if they have told of no block yet: it is estimated no more."""
        if (holder := self._holders.get(slot)) is not None:
            holder.heard = True
            holder.partial = False
            holder.to_ask = 0
            self._room.measure(holder)

    def reading(self, slot: int, past: bool) -> None:
        """Whether the endpoint's ``past`` is being read: what it held then says little of what it holds, so that it is
        estimated until that ends."""
        if (holder := self._holders.get(slot)) is not None:
            holder.reading = past
            self._room.measure(holder)

    def unknown_past(self, slot: int) -> None:
        """The endpoint holds what its events have not told: it is estimated, too, from now on, and prompts may ask for
        that, as many as are configured."""
        if (holder := self._holders.get(slot)) is not None:
            holder.partial = True
            holder.to_ask = self._settings.reannounce
            self._room.measure(holder)

    def may_ask(self, slot: int) -> bool:
        """Whether some prompts are yet to have the endpoint's engine announce again what it holds of them."""
        holder = self._holders.get(slot)
        return holder is not None and holder.to_ask > 0

    def asks(self, slot: int, keys: BlockKeys) -> bool:
        """Whether this prompt shall have its engine announce again what it holds of it; each counts."""
        holder = self._holders.get(slot)
        if holder is None or holder.to_ask < 1 or not (keys and holder.knows(keys) and keys.unit == self.unit):
            return False
        holder.to_ask -= 1
        return True

    def reannounced(self, slot: int, keys: BlockKeys) -> None:
        """The engine was asked to announce again what it holds of a prompt: that makes no copies."""
        holder = self._holders.get(slot)
        if holder is not None and keys and keys.unit == self.unit:
            holder.await_report(keys[0])

    def not_reannounced(self, slot: int, keys: BlockKeys) -> None:
        """The leg that asked for it failed: its report will not come, unless it has come already."""
        holder = self._holders.get(slot)
        if holder is not None and keys and keys.unit == self.unit:
            holder.take_report(keys[0])

    def take(self, slot: int, events: Sequence[Event]) -> None:
        """Some events of the endpoint's stream, in order."""
        holder = self._holders.get(slot)
        if holder is None:
            return
        if holder.clearing is not None:
            self._finish(holder)
        at, count = 0, len(events)
        while at < count:
            event = events[at]
            if not isinstance(event, BlockStored) or len(event.block_hashes) == 1:
                at, stored, removed = holder.holdings.quick(events, at)
                if stored:
                    holder.told["stored"] += stored
                    holder.heard = True
                if removed:
                    holder.told["removed"] += removed
                if at == count:
                    break
                event = events[at]
            at += 1
            if isinstance(event, BlockStored):
                if not self._stored(holder, event):
                    return  # everything begins anew, and so do the events
            elif isinstance(event, BlockRemoved):
                holder.told["removed"] += len(event.block_hashes)
                if problem := holder.holdings.removed(event):
                    holder.told[problem] += 1
            else:
                self.reset(slot)
                self._finish(self._holders[slot])
            holder = self._holders[slot]
        self._recount(holder)

    def reset(self, slot: int) -> Iterator[None]:
        """The endpoint's GPU cache was reset; what it has on other tiers stays.

        Matches know at once; the rest is work in small steps. What is left of it is done before anything else is
        applied, and needs not be done if the endpoint goes.
        """
        holder = self._holders.get(slot)
        if holder is None:
            return iter(())
        self._finish(holder)
        holder.told["cleared"] += 1
        work = holder.holdings.clear()
        if work is None:
            self.forget(slot)
            self._holders[slot].partial = holder.partial
            self.reading(slot, holder.reading)  # a reset may be part of the past
            return iter(())
        holder.clearing = self._clear(holder, work)
        return holder.clearing

    def tell(self, slot: int) -> None:
        """Tell the observer what the endpoint's events came to since the last time: once a message, not an event."""
        if (holder := self._holders.get(slot)) is not None:
            for kind, count in holder.told.items():
                self._observer.kv_events(holder.endpoint.name, kind, count)
            holder.told.clear()
            self._observer.kv_blocks(self._model, self.blocks)

    # what requests ask and do

    def keys(
        self,
        ids: array[int],
        count: int,
        exact: bool,
        adapter: str | None,
        salt: str | None,
        media: Sequence[Medium] = (),
        whole: bool = True,
        differing: frozenset[str] = NOWHERE,
    ) -> BlockKeys:
        """Keys of a prompt's whole blocks. ``ids``, ``media``, ``whole``, ``differing``: as ``Prompt``'s; ``count``:
        its tokens."""
        if not self._learned:
            for size in [holder.block_size for holder in self._holders.values() if holder.block_size]:
                self._learn(size)
        keys = chain_past(ids, self.unit, root(exact, adapter, salt), media, self._chains.keys)
        return BlockKeys(keys, self.unit, count, exact, whole, differing)

    def match(self, keys: BlockKeys, prompt_tokens: int, endpoints: Sequence[Endpoint]) -> Matches:
        """What each of ``endpoints`` holds of the prompt.

        By its engine's events and by predictions where events come, else by what was routed there; by whichever says
        more where the events do not tell all.
        """
        matches = Matches(room=self._room.left)
        if keys.unit != self.unit:  # it changed while the request waited
            return matches
        self._overlay.lapse()
        self._room.look()
        told: list[Candidate] = []
        estimated: list[Candidate] = []
        both: list[Candidate] = []
        holders, exact, whole, below = self._holders, keys.exact, keys.whole, False
        differing = keys.differing
        for endpoint in endpoints:
            holder = holders.get(endpoint.slot)
            if holder is None:
                continue
            candidate = holder.candidate
            candidate.block_size = holder.holdings.block_size or endpoint.metrics.block_size
            if (
                exact
                and holder.events
                and holder.heard
                and not holder.reading
                and not (differing and endpoint.name in differing)
            ):
                candidate.gpu = holder.clearing is None
                candidate.going = self._room.going(holder, self.unit)
                if not below:
                    cpu, storage = holder.below
                    below = bool(cpu or storage)
                told.append(candidate)
                if (holder.partial or not whole) and candidate.gpu:
                    both.append(candidate)
            else:
                estimated.append(candidate)
        if told:
            matches |= match_told(keys, prompt_tokens, told, self._shelf, below=below)
        if estimated:
            matches.update(match_estimated(keys, prompt_tokens, estimated, self._shelf))
        for slot, match in match_estimated(keys, prompt_tokens, both, self._shelf) if both else ():
            if match.tokens > matches[slot].tokens:
                matches[slot] = deeper(matches[slot], match)
        return matches

    def is_told(self, slot: int, keys: BlockKeys) -> bool:
        """Whether the endpoint's events say what it holds of a prompt; else it is estimated."""
        holder = self._holders.get(slot)
        return holder is not None and holder.tells(keys)

    def placed(self, keys: BlockKeys, endpoint: Endpoint) -> BlockUse:
        """The prompt is sent to ``endpoint``. The caller tells what is returned what becomes of it."""
        holder = self._holders.get(endpoint.slot)
        if holder is None or keys.unit != self.unit:
            return BlockUse(self, keys, endpoint)
        if self._places.wait:
            self._places.sweep(SWEEP)
        self._placements += 1
        if not holder.tells_all(keys):
            tokens = endpoint.metrics.kv_capacity or self._settings.capacity_tokens
            holder.estimate.sent(keys, max(1, tokens // self.unit))
        if not (holder.events and holder.knows(keys)):
            return BlockUse(self, keys, endpoint)
        prediction = self._overlay.predict(holder.place, keys, self._placements)
        return BlockUse(self, keys, endpoint, prediction, holder.holdings.order)

    def settled(self, keys: BlockKeys, endpoint: Endpoint, expected: int, reported: int | None) -> None:
        """The engine has reported ``reported`` cached tokens where ``expected`` were expected.

        What events had said is mended where copies were miscounted, and an estimate believes less of the engine's
        capacity.
        """
        holder = self._holders.get(endpoint.slot)
        if holder is None or reported is None or keys.unit != self.unit:
            return
        if not holder.tells_all(keys):
            # Where tokens are not known to the last, what stands in for them may be longer than they are.
            served = reported >= expected or (not keys.whole and 2 * reported >= expected)
            holder.estimate.reported(expected, served)
        if reported < expected and holder.tells(keys):
            holder.missed(keys, reported // self.unit, expected // self.unit)

    # how

    def _begin(self, endpoint: Endpoint, events: bool, heard: bool) -> None:
        """The endpoint holds nothing, under places that nobody has."""
        holder = Holder(endpoint, events, heard, self._places.take(), self._shelf, self.unit, self._overlay)
        self._holders[endpoint.slot] = holder
        self._room.measure(holder)

    def _clear(self, holder: Holder, work: Iterator[None]) -> Generator[None]:
        """Work through a reset in small steps, while the endpoint stays."""
        if not holder.reading:  # a reset in the past says nothing of what was sent since
            yield from join(self._overlay.leave(holder.place), holder.estimate.leave())
        yield from work
        holder.clearing = None
        self._recount(holder)
        self.tell(holder.endpoint.slot)

    def _finish(self, holder: Holder) -> None:
        """Work through what is left of a reset."""
        for _ in holder.clearing or ():
            pass

    def _recount(self, holder: Holder) -> None:
        """What the endpoint holds has changed: sweep as much as it grew, so that what waits for that does not grow."""
        grown = self._bound.count(holder)
        if self._places.wait:
            self._places.sweep(SWEEP + max(0, grown))
        self._bound.keep(holder, self._placements)
        self._room.measure(holder)

    def _leave(self, holder: Holder) -> Iterator[None]:
        """Clear all places of a holder that is gone, in small steps."""
        for _ in holder.holdings.leave():
            self._bound.left(holder, 1)
            yield
        self._bound.left(holder)
        yield from join(holder.estimate.leave(), self._overlay.leave(holder.place))
        self._observer.kv_blocks(self._model, self.blocks)

    def _stored(self, holder: Holder, event: BlockStored) -> bool:
        """Apply an event that is not of the usual kind. False: the unit changed, and everything begins anew."""
        slot = holder.endpoint.slot
        problem = holder.holdings.problem(event)
        named = not problem and is_named(event)
        if named and event.block_size != holder.holdings.block_size and is_tail(event, holder.block_size):
            problem, named = "partial-tail", False
        if named and (not self._learned or event.block_size % self.unit):
            problem = self._learn(event.block_size)
            holder = self._holders[slot]
        if not problem:
            if named:
                problem = holder.holdings.named(event, copies=not (holder.reports and holder.is_report(event)))
                holder.heard = True
            else:
                problem = holder.holdings.stored(event)
            holder.told["stored"] += len(event.block_hashes)
        if problem:
            holder.told[problem] += 1
        return problem != "new-unit"

    def _learn(self, block_size: int) -> str:
        """An engine has blocks of this size: fit the unit. Returns why its blocks have no keys (yet), or ``""``."""
        unit = math.gcd(block_size, self.unit) if self._learned else block_size
        if unit < SMALLEST_UNIT:
            return "block-size"
        learned, self._learned = self._learned, True
        if unit == self.unit:
            return ""
        self.unit = unit
        for slot, holder in list(self._holders.items()):
            self.forget(slot)
            self._holders[slot].to_ask = holder.to_ask
            self._holders[slot].partial = holder.partial
        if not learned:
            return ""
        self.on_new_unit()
        return "new-unit"
