"""What live prompts have in common on each endpoint: their KV is in its memory once, and the ledger counts it for each.

A prompt is known by the keys of its blocks. A key depends on all blocks before it, so two prompts that share one share
all before it; one key of each ``STRETCH`` tokens is enough to tell how much. Each has a count of the live prompts that
have it. What is not held here counts in full, so that a mistake here makes an endpoint look fuller, never emptier.
A prompt's keys are counted when somebody asks: most come and go on endpoints that have room in any case. Pure.
"""

from __future__ import annotations

from array import array

import msgspec

from gateway.framework import Endpoint
from gateway.kvcache.index.keys import BlockKeys

STRETCH = 256
"""Tokens of which one key is kept, 16 blocks of 16; of larger blocks, each. Shorter prefixes count for each prompt."""


class Held(msgspec.Struct, eq=False):
    """One prompt on one endpoint, until ``release``, which may be called more than once. ``counted``: where its keys
    are, and those that are looked at; None: nobody has asked since it came, or it is released."""

    live: LiveKv
    endpoint: Endpoint
    keys: BlockKeys
    counted: tuple[_Shared, array[int]] | None = None

    def release(self) -> None:
        if self.live.new.pop(self, None) is None and self.counted is not None:
            (on, kept), self.counted = self.counted, None
            on.remove(kept)


class _Shared:
    """Of one endpoint. ``stretch``: tokens that one key stands for. ``twice``: keys beyond the first of each, of all
    live prompts."""

    __slots__ = ("counts", "name", "stretch", "twice")

    def __init__(self, name: str, stretch: int) -> None:
        self.name = name
        self.stretch = stretch
        self.counts: dict[int, int] = {}
        self.twice = 0

    def add(self, keys: array[int]) -> None:
        counts = self.counts
        known = len(counts)
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        self.twice += len(keys) - (len(counts) - known)

    def remove(self, keys: array[int]) -> None:
        counts = self.counts
        known = len(counts)
        for key in keys:
            left = counts[key] - 1
            if left:
                counts[key] = left
            else:
                del counts[key]
        self.twice -= len(keys) - (known - len(counts))


class LiveKv:
    """Of one model's endpoints. ``new``: those that are not counted yet."""

    def __init__(self) -> None:
        self.new: dict[Held, Held] = {}
        self._endpoints: dict[int, _Shared] = {}

    def hold(self, endpoint: Endpoint, keys: BlockKeys) -> Held:
        """The prompt of these keys is live there from now on."""
        held = Held(self, endpoint, keys)
        self.new[held] = held
        return held

    def _count(self) -> None:
        """Those that are new."""
        for held in self.new:
            endpoint, keys = held.endpoint, held.keys
            every = max(1, STRETCH // keys.unit)
            shared, stretch = self._endpoints.get(endpoint.slot), every * keys.unit
            if shared is None or shared.name != endpoint.name or shared.stretch != stretch:
                # Whoever is held there by another name, or in blocks of another size, is released from the old one.
                shared = self._endpoints[endpoint.slot] = _Shared(endpoint.name, stretch)
            kept = keys.values[every - 1 :: every]
            shared.add(kept)
            held.counted = shared, kept
        self.new.clear()

    def saved(self, endpoint: Endpoint) -> int:
        """Tokens that the live prompts there have in common, for all but the first who has them."""
        if self.new:
            self._count()
        shared = self._endpoints.get(endpoint.slot)
        return shared.twice * shared.stretch if shared is not None and shared.name == endpoint.name else 0

    def live(self, endpoint: Endpoint, keys: BlockKeys) -> int:
        """Leading tokens of the prompt of these keys that a live prompt there has as well."""
        if self.new:
            self._count()
        shared, every = self._endpoints.get(endpoint.slot), max(1, STRETCH // keys.unit)
        if shared is None or not shared.counts or shared.name != endpoint.name or shared.stretch != every * keys.unit:
            return 0
        values, counts = keys.values, shared.counts
        least, most = 0, len(values) // every  # whoever has a key has all before it: so it is found by halving
        while least < most:
            middle = (least + most + 1) // 2
            if values[middle * every - 1] in counts:
                least = middle
            else:
                most = middle - 1
        return least * shared.stretch
