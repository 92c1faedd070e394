"""What the index knows of one endpoint, since that was last cleared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from itertools import chain

from gateway.framework import Endpoint
from gateway.kvcache.index.approximate import ApproximateCache
from gateway.kvcache.index.block_events import BlockStored
from gateway.kvcache.index.block_table import CHUNK_BITS, BlockTable
from gateway.kvcache.index.engine_blocks import EngineBlocks
from gateway.kvcache.index.kept_estimates import KeptEstimate
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.index.matching import Candidate
from gateway.kvcache.index.predictions import Predictions

REPORTS = 1000
"""Prompts of an endpoint whose report is expected: an engine that holds nothing of a prompt sends none."""


class EndpointState:
    """One endpoint.

    ``column``: the first of its columns in the block table; ``bit``: its bit in bitmaps of these. ``events``: its
    engine's events are followed. ``events_seen``: at least one block was stored by them, or they are known to be
    complete. ``replaying``: a replay is in progress, and describes the past. ``partial``: the engine may hold blocks
    that its events have not reported. ``reset_work``: the GPU tier was reset; what is left of clearing it in the table.
    ``counted``: blocks that the index's size limit counts for it. ``awaited_reports``: first key of a prompt -> how
    often the engine was asked to announce its blocks again. ``reannounces_left``: prompts that may still ask that.
    ``below``: as ``Copies.below``. ``last_evidence``: what ``Coverage`` was last told of ``evidence``.
    ``counts``: what its events came to, by kind, since that was last reported.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        events: bool,
        events_seen: bool,
        column: int,
        table: BlockTable,
        unit: int,
        predictions: Predictions,
    ) -> None:
        self.endpoint = endpoint
        self._table = table
        self.events = events
        self.events_seen = events_seen
        self.column = column
        self.replaying = False
        self.partial = False
        self.reset_work: Generator[None] | None = None
        self.blocks = EngineBlocks(unit, table, column, predictions)
        self.below = self.blocks.copies.below
        self.approximate = ApproximateCache(table, column)
        self.bit = 1 << column
        self.candidate = Candidate(endpoint, column)
        self.last_evidence = self.evidence
        self.counted = 0
        self.awaited_reports: Counter[int] = Counter()
        self.reannounces_left = 0
        self.counts: defaultdict[str, int] = defaultdict(int)

    @property
    def block_size(self) -> int:
        """Tokens of one of the engine's blocks; 0: unknown."""
        return self.blocks.block_size or self.endpoint.metrics.block_size

    @property
    def evidence(self) -> tuple[bool, int, bool]:
        """What its events show of it: ``events_seen``, the size of a block, whether there are any below the GPU."""
        cpu, storage = self.below
        return self.events_seen, self.blocks.block_size, bool(cpu or storage)

    def keep(self) -> KeptEstimate:
        """What it is believed to hold by what was sent there."""
        approximate = self.approximate
        return KeptEstimate(self.endpoint.name, self.endpoint.engine.started, approximate.believed, approximate.keep())

    def has_engine_keys(self, keys: BlockKeys) -> bool:
        """Whether the engine's own tokens of the prompt have these keys."""
        return keys.exact and self.endpoint.name not in keys.differing

    def covered_by_events(self, keys: BlockKeys) -> bool:
        """Whether the endpoint's events can report what it holds of a prompt."""
        return self.events and self.events_seen and self.has_engine_keys(keys) and not self.replaying

    def fully_covered(self, keys: BlockKeys) -> bool:
        """Whether they can report all that it holds of it."""
        return self.covered_by_events(keys) and keys.whole and not self.partial

    def recomputed(self, keys: BlockKeys, start: int, end: int) -> None:
        """The engine had to compute blocks ``start`` to ``end`` of a prompt, whatever its events had reported."""
        position = 0
        ranges: list[range] = []
        for chunk, shared in self._table.path(keys.values[:end]):
            first = max(0, start - position)
            if first < shared:
                number = chunk.number << CHUNK_BITS
                ranges.append(range(number | first, (number | shared - 1) + 1))
            position += shared
        self.blocks.mark_recomputed(chain.from_iterable(ranges))

    def expect_report(self, first: int) -> None:
        """The engine was asked to announce again a prompt with this first key."""
        self.awaited_reports[first] += 1
        if len(self.awaited_reports) > REPORTS:
            del self.awaited_reports[next(iter(self.awaited_reports))]

    def is_report(self, event: BlockStored) -> bool:
        """Whether the event is an expected report; then it is expected no more."""
        first = self.blocks.first_key(event)
        return first is not None and self.drop_report(first)

    def drop_report(self, first: int) -> bool:
        """One report less is expected of a prompt with this first key; whether one was."""
        left = self.awaited_reports.pop(first, 0) - 1
        if left > 0:
            self.awaited_reports[first] = left
        return left >= 0
