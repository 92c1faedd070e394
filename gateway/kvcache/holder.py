"""What the index has of one endpoint, since that last began anew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from functools import partial
from itertools import chain

from gateway.framework import Endpoint
from gateway.kvcache.estimate import Estimate
from gateway.kvcache.events import BlockStored
from gateway.kvcache.holdings import Holdings
from gateway.kvcache.keys import BlockKeys
from gateway.kvcache.matching import Candidate
from gateway.kvcache.overlay import Overlay
from gateway.kvcache.shelf import BITS, Shelf

REPORTS = 1000
"""Prompts of an endpoint whose report is awaited: one that holds nothing of a prompt sends none."""


class Holder:
    """One endpoint.

    ``place``: the first of its places. ``events``: its engine's events are followed; ``heard``: and have told of blocks
    at some time, so that they can be believed to come; ``reading``: its past is being read, and is not yet the present;
    ``partial``: it holds what they have not told. ``clearing``: its GPU tier is empty, but not yet on the shelf: the
    work that is left. ``counted``: its part of the index's size. ``reports``: first keys of prompts whose blocks the
    engine was asked to announce again. ``to_ask``: prompts with which it may yet be asked that by us. ``below``: as its
    holdings'.
    """

    def __init__(
        self, endpoint: Endpoint, events: bool, heard: bool, place: int, shelf: Shelf, unit: int, overlay: Overlay
    ) -> None:
        self.endpoint = endpoint
        self._shelf = shelf
        self.events = events
        self.heard = heard
        self.place = place
        self.reading = False
        self.partial = False
        self.clearing: Generator[None] | None = None
        self.holdings = Holdings(unit, shelf, place, partial(overlay.confirmed, place))
        self.below = self.holdings.below
        self.estimate = Estimate(shelf, place)
        self.candidate = Candidate(endpoint.slot, place, block_size=0)
        self.counted = 0
        self.reports: Counter[int] = Counter()
        self.to_ask = 0
        self.told: defaultdict[str, int] = defaultdict(int)

    @property
    def block_size(self) -> int:
        """Tokens of one of the engine's blocks; 0 if it has not told."""
        return self.holdings.block_size or self.endpoint.metrics.block_size

    def knows(self, keys: BlockKeys) -> bool:
        """Whether the keys are those that the engine's own tokens have."""
        return keys.exact and self.endpoint.name not in keys.differing

    def tells(self, keys: BlockKeys) -> bool:
        """Whether the endpoint's events can say what it holds of a prompt."""
        return self.events and self.heard and self.knows(keys) and not self.reading

    def tells_all(self, keys: BlockKeys) -> bool:
        """Whether they can say all that it holds of it."""
        return self.tells(keys) and keys.whole and not self.partial

    def missed(self, keys: BlockKeys, start: int, end: int) -> None:
        """Blocks ``start`` to ``end`` of a prompt were not there, whatever the events had said."""
        position = 0
        locations: list[range] = []
        for stretch, shared in list(self._shelf.path(keys[:end])):
            first = max(0, start - position)
            if first < shared:
                number = stretch.number << BITS
                locations.append(range(number | first, (number | shared - 1) + 1))
            position += shared
        self.holdings.recomputed(chain.from_iterable(locations))

    def await_report(self, first: int) -> None:
        """The engine was asked to announce again a prompt with this first key."""
        self.reports[first] += 1
        if len(self.reports) > REPORTS:
            del self.reports[next(iter(self.reports))]

    def is_report(self, event: BlockStored) -> bool:
        """Whether this is an answer to that; then it is awaited no more."""
        first = self.holdings.first_key(event)
        return first is not None and self.take_report(first)

    def take_report(self, first: int) -> bool:
        """One report less of a prompt with this first key; whether one was awaited."""
        left = self.reports.pop(first, 0) - 1
        if left > 0:
            self.reports[first] = left
        return left >= 0
