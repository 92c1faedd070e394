"""Approximates what an endpoint without events holds, by what was sent there: an LRU cache of the engine's capacity.

There is no limit on depth: in simulation an approximation of the right size is as good as events, one of a quarter of
it costs 66 % of mean time to first token, one that drops what lies behind the first 4,096 tokens more than doubles it.
What is used together is remembered together, by chunks: where another prompt branches off within one, up to 63 blocks
count as used though they were not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from gateway.kvcache.index.block_table import LEADING, BlockChunk, BlockTable
from gateway.kvcache.index.kept_estimates import packed, unpacked
from gateway.kvcache.index.layers import Layer

LESS = 0.9
"""Factor of the assumed capacity after an answer that was served less than expected: something else is in the cache."""

MORE = 1.01
"""The same after one that was served as expected. In the balance one answer in ten finds less than expected."""

LEAST = 0.05
"""Of the capacity, assumed at least."""


class ApproximateCache:
    """Blocks sent to one endpoint. ``column``: the endpoint's first. ``believed``: the share of the capacity that is
    assumed."""

    def __init__(self, table: BlockTable, column: int) -> None:
        self.believed = 1.0
        self._table = table
        self._column = column + Layer.APPROXIMATE
        # BlockChunk -> how many of its leading blocks; the least recently used first.
        self._counts: OrderedDict[BlockChunk, int] = OrderedDict()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, keys: Sequence[int], capacity: int) -> None:
        """A prompt was sent to an engine with room for ``capacity`` keys.

        The prompt's first block becomes the most recent one, since engines free a sequence from its tail. Of a prompt
        that does not fit, the tail is left out.
        """
        capacity = max(1, int(capacity * self.believed))
        counts, table, column = self._counts, self._table, self._column
        for chunk, offset, count in reversed(table.insert(-1, keys[:capacity], column)):
            table.mark(chunk, column, LEADING[count] << offset)
            before = counts.get(chunk, 0)
            counts[chunk] = max(before, offset + count)
            counts.move_to_end(chunk)
            self._total += counts[chunk] - before
        while self._total > capacity:
            chunk, count = next(iter(counts.items()))
            less = min(count, self._total - capacity)
            self._total -= less
            if less == count:
                del counts[chunk]
            else:
                counts[chunk] = count - less
            table.unmark(chunk, column, LEADING[less] << count - less)

    def keep(self) -> bytes:
        """What it holds, as ``restore`` takes it."""
        return packed(chunk.keys[:count] for chunk, count in self._counts.items())

    def restore(self, runs: bytes, believed: float, capacity: int) -> None:
        """Hold what ``keep`` gave. The table has no block of these prompts: chunks are made as they were, wherever in a
        prompt they are."""
        self.believed = believed
        for run in unpacked(runs):
            self.add(run, capacity)

    def adjust(self, expected: int, served: bool) -> None:
        """``served``: the engine served the tokens ``expected`` from its cache."""
        if not served:
            self.believed = max(LEAST, self.believed * LESS)
        elif expected:
            self.believed = min(1.0, self.believed * MORE)

    def remove_all(self) -> Iterator[None]:
        """Take everything out of the table, in steps of one chunk each."""
        counts = self._counts
        while counts:  # it may change between two steps
            chunk, count = counts.popitem(last=False)
            self._total -= count
            self._table.unmark_all(chunk, self._column)
            yield
