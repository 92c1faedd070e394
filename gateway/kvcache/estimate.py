"""What an endpoint probably holds where nobody tells: what was sent there, least recently used forgotten first.

The capacity is the engine's own, and there is no limit on depth: in simulation an estimate of the right size is as good
as events, one of a quarter of it costs 66 % of mean time to first token, one that forgets what lies behind the first
4,096 tokens more than doubles it. What is used together is remembered together, by stretches: where another prompt
branches off within one, up to 63 blocks count as used though they were not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from gateway.kvcache.layers import Layer
from gateway.kvcache.shelf import ALL, Shelf, Stretch

LESS = 0.9
"""Of the capacity that is believed, after an answer that was served less than expected: something else is in there."""

MORE = 1.01
"""After one that was served as expected. So in the balance one answer in ten finds less than was expected."""

LEAST = 0.05
"""Of the capacity, whatever answers say."""


class Estimate:
    """Blocks sent to one endpoint. ``place``: the endpoint's on the shelf."""

    def __init__(self, shelf: Shelf, place: int) -> None:
        self.believed = 1.0
        self._shelf = shelf
        self._place = place + Layer.ESTIMATED
        # Stretch -> how many of its leading blocks; the least recently used first.
        self._counts: OrderedDict[Stretch, int] = OrderedDict()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def sent(self, keys: Sequence[int], capacity: int) -> None:
        """A prompt was sent to an engine with room for ``capacity`` keys.

        A prompt's first block becomes the most recent one, since engines free a sequence from its tail. What does not
        fit at all is the tail's loss.
        """
        capacity = max(1, int(capacity * self.believed))
        counts, shelf, place = self._counts, self._shelf, self._place
        for stretch, offset, count in reversed(shelf.enter(-1, keys[:capacity])):
            shelf.mark(stretch, place, ALL[count] << offset)
            before = counts.get(stretch, 0)
            counts[stretch] = max(before, offset + count)
            counts.move_to_end(stretch)
            self._total += counts[stretch] - before
        while self._total > capacity:
            stretch, count = next(iter(counts.items()))
            less = min(count, self._total - capacity)
            self._total -= less
            if less == count:
                del counts[stretch]
            else:
                counts[stretch] = count - less
            shelf.unmark(stretch, place, ALL[less] << count - less)

    def reported(self, expected: int, served: bool) -> None:
        """Whether the engine served the tokens ``expected`` from its cache."""
        if not served:
            self.believed = max(LEAST, self.believed * LESS)
        elif expected:
            self.believed = min(1.0, self.believed * MORE)

    def leave(self) -> Iterator[None]:
        """Take everything off the shelf, in steps of one stretch each."""
        counts = self._counts
        while counts:  # it may change between two steps
            stretch, count = counts.popitem(last=False)
            self._total -= count
            self._shelf.leave(stretch, self._place)
            yield
