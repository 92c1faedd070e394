"""The blocks of one endpoint: each engine hash, where its keys are on the shelf, and how many copies are on each tier.

Holds these three together, whatever made them change; knows nothing of events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain as join
from itertools import islice

from gateway.kvcache.copies import Copies
from gateway.kvcache.layers import Layer
from gateway.kvcache.names import Names, locations
from gateway.kvcache.shelf import ALL, BITS, OFFSET, Shelf, Stretch
from gateway.kvcache.tiers import Tiers

MAX_ANEW = 16_384
"""Blocks that are remembered as computed anew: 2 MB, and more than two of the longest prompts. Beyond that, copies that
were miscounted end with age."""


class Blocks:
    """``place``: the endpoint's on the shelf, of its GPU layer. ``confirmed``: as ``Tiers``'."""

    def __init__(self, shelf: Shelf, place: int, confirmed: Callable[[Stretch, int], None]) -> None:
        self.names = Names()
        self.copies = Copies()
        self.tiers = Tiers(shelf, place, confirmed)
        self._shelf = shelf
        # Location -> ``Copies.computed`` when the block there was last computed anew; the earliest first.
        self._anew: dict[int, int] = {}
        # What a reset that is not yet worked through has still to look at.
        self._to_clear = Names()

    @property
    def is_plain(self) -> bool:
        """Each block is on the GPU and nowhere else, and no key is held by two: what is not in ``copies.many`` is gone
        with one removal, and its keys with it."""
        copies = self.copies
        return not (self.tiers.again[Layer.GPU] or copies.absent or copies.is_tiered)

    def put(self, hashes: Sequence[int], keys: Sequence[int], behind: int) -> None:
        """New blocks, on the GPU, in a row behind a location."""
        names = self.names.young
        each = len(keys) // len(hashes)
        found: list[int] = []
        at = 0
        entered = self._shelf.enter(behind, keys)
        for stretch, offset, count in entered:
            first = stretch.number << BITS | offset
            if each == 1:
                names.update(zip(hashes[at : at + count], range(first, first + count), strict=True))
                at += count
            else:
                found += range(first, first + count)
            self.tiers.mark(Layer.GPU, stretch, ALL[count] << offset)
        # Only now: a stretch may be there twice, with what it had and what is new to it, which nobody held till now.
        for stretch, offset, count in entered:
            self.tiers.come_true(stretch, ALL[count] << offset)
        if each > 1:
            for number, name in enumerate(hashes):
                names[name] = tuple(found[number * each : (number + 1) * each])

    def add(self, name: int, tier: Layer) -> None:
        """One more copy of a known block."""
        self._mend(name)
        if self.copies.add(name, tier):
            for where in locations(self.names[name]):
                self.tiers.put(tier, self._shelf.at(where), 1 << (where & OFFSET))

    def take(self, name: int, tier: Layer) -> None:
        """One copy less of a known block; with its last, on all tiers, it is known no longer."""
        self._mend(name)
        copies = self.copies
        if not copies.take(name, tier):
            return
        named = self.names[name]
        if name in copies.absent and not copies.is_below(name):
            self.names.pop(name)
            copies.absent.discard(name)
        self.tiers.release(tier, named)

    def drop(self, hashes: Sequence[int]) -> list[int]:
        """The last copies of blocks are gone, where all are plain; returns those that are not known, or have others."""
        young, old, many = self.names.young, self.names.old, self.copies.many
        gone: dict[int, int] = {}
        left = []
        for name in hashes:
            named = young.pop(name, None) if name not in many else None
            if named is None and (name in many or not old or (named := old.pop(name)) is None):
                left.append(name)
            elif isinstance(named, int):
                gone[named >> BITS] = gone.get(named >> BITS, 0) | 1 << (named & OFFSET)
            else:
                self.tiers.release(Layer.GPU, named)
        self.tiers.release_plain(gone)
        return left

    def recomputed(self, found: Iterable[int]) -> None:
        """The engine had to compute the blocks at these locations anew: there is one copy now, not more.

        Which hashes these are is not looked for: it is looked at when one with several copies is spoken of again.
        """
        copies, anew = self.copies, self._anew
        if not copies.many:
            anew.clear()
            return
        for where in found:
            anew.pop(where, None)
            anew[where] = copies.computed
        for where in list(islice(anew, max(0, len(anew) - MAX_ANEW))):
            del anew[where]

    def clear(self) -> Iterator[None]:
        """Take all from the GPU, in steps of one block each; what is on other tiers stays.

        Until the last step, nothing but ``leave`` may be asked.
        """
        self.copies.many.clear()
        absent, self.copies.absent = self.copies.absent, set()
        self._to_clear = self.names.pop_all()
        return self._clear(absent)

    def leave(self) -> Iterator[None]:
        """Take everything off the shelf, in steps of one block each. The blocks are of no use afterwards."""
        for named in join(self.names.values(), self._to_clear.values()):
            self.tiers.leave(named)
            yield

    def _mend(self, name: int) -> None:
        """Forget copies that were heard of before the block was computed anew."""
        if self._anew and (several := self.copies.many.get(name)) is not None:
            at = several[1]
            if any(self._anew.get(where, -1) >= at for where in locations(self.names[name])):
                del self.copies.many[name]

    def _clear(self, absent: set[int]) -> Iterator[None]:
        copies, names = self.copies, self.names
        for name, named in self._to_clear.items():
            if copies.is_below(name):
                names.young[name] = named
                copies.absent.add(name)
            if name not in absent:
                self.tiers.release(Layer.GPU, named)
            yield
        self._to_clear = Names()
