"""What each endpoint holds of a prompt, from how far it holds it. Pure.

Endpoints that hold equally much share one match. Matches are made by ``tuple.__new__``: to call a named tuple's class
is a call of Python more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gateway.framework import Endpoint
from gateway.framework.match import Match, Source
from gateway.kvcache.index.block_table import LEADING, BlockChunk, BlockTable, columns
from gateway.kvcache.index.holders import APPROXIMATE, Group, holders
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.index.layers import PREDICTED, Layer

Path: TypeAlias = list[tuple[BlockChunk, int]]
"""(chunk, number of its leading blocks) along a prompt."""

NOTHING: Mapping[BlockChunk, int] = {}

BITMAPS_KEPT = 256
"""Bitmaps whose endpoints are remembered: few endpoints have few, and of many endpoints mostly all hold the same."""

# To look up an enum's member takes as long as all else that is done for one candidate.
_EVENTS, _PREDICTED, _ESTIMATED = Source.EVENTS, Source.PREDICTED, Source.ESTIMATED


class Candidate:
    """One endpoint. ``column``: its first in the block table. ``block_size``: tokens of an engine block, as its events
    tell; 0 if they have not.

    ``gpu``: whether its GPU column counts; false while a reset is worked through. ``evicted``: chunk -> bits of the
    blocks that it will have evicted by the time that it starts the prompt.
    """

    __slots__ = ("block_size", "column", "endpoint", "evicted", "gpu", "slot")

    def __init__(self, endpoint: Endpoint, column: int, block_size: int = 0, gpu: bool = True) -> None:
        self.endpoint = endpoint
        self.slot = endpoint.slot
        self.column = column
        self.block_size = block_size
        self.gpu = gpu
        self.evicted = NOTHING


class Candidates:
    """All endpoints of an index, by their first columns."""

    def __init__(self) -> None:
        self._by_column: dict[int, Candidate] = {}
        self._several: dict[int, tuple[Candidate, ...]] = {}
        self._slots: dict[int, tuple[int, ...]] = {}

    def add(self, candidate: Candidate) -> None:
        self._by_column[candidate.column] = candidate
        self._several.clear()
        self._slots.clear()

    def remove(self, candidate: Candidate) -> None:
        del self._by_column[candidate.column]
        self._several.clear()
        self._slots.clear()

    def of(self, mask: int) -> tuple[Candidate, ...]:
        """Those whose first columns are in ``mask``."""
        found = self._several.get(mask)
        if found is None:
            if len(self._several) >= BITMAPS_KEPT:
                self._several.clear()
            found = self._several[mask] = tuple([self._by_column[column] for column in columns(mask)])
        return found

    def slots(self, mask: int) -> tuple[int, ...]:
        """The slots of the same."""
        found = self._slots.get(mask)
        if found is None:
            if len(self._slots) >= BITMAPS_KEPT:
                self._slots.clear()
            found = self._slots[mask] = tuple([candidate.slot for candidate in self.of(mask)])
        return found


def match_approximate(
    keys: BlockKeys, prompt_tokens: int, table: BlockTable, alive: int, candidates: Candidates
) -> dict[int, Match]:
    """Slot -> match of the endpoints of ``alive`` that probably hold something, by what was sent there."""
    matches: dict[int, Match] = {}
    unit = keys.unit
    for mask, depth, *_ in holders(keys.values, table, alive, APPROXIMATE)[0]:
        for candidate in candidates.of(mask):
            size = candidate.block_size or candidate.endpoint.metrics.block_size
            if size < unit:
                size = unit
            if whole := depth * unit // size * size:
                hit = max(0, min(whole, (prompt_tokens - 1) // size * size))
                matches[candidate.slot] = tuple.__new__(Match, (whole, 0, 0, hit, _ESTIMATED))
    return matches


def add_matches(
    matches: dict[int, Match],
    groups: Sequence[Group],
    keys: BlockKeys,
    prompt_tokens: int,
    candidates: Candidates,
    special: int,
) -> list[tuple[int, int]]:
    """Enter the matches of all endpoints in ``groups`` whose blocks are of one unit, stay where they are, and are best
    found on the GPU. ``special``: bitmap of the others. Returns what is left: their bitmaps, and the blocks that they
    hold."""
    unit = keys.unit
    left: list[tuple[int, int]] = []
    for mask, depth, chunk, at in groups:
        if others := mask & special:
            left.append((others, depth))
            mask ^= others
        if not mask:
            continue
        whole = depth * unit
        # The engine always computes the last token, and will serve whole blocks from its cache.
        hit = whole if whole < prompt_tokens else max(0, (prompt_tokens - 1) // unit * unit)
        on_gpu = mask & chunk.full
        predicted = mask ^ on_gpu
        if predicted and (part := chunk.part):
            for column in columns(predicted):
                if part.get(column, 0) >> at & 1:
                    on_gpu |= 1 << column
            predicted &= ~on_gpu
        if on_gpu:
            match = tuple.__new__(Match, (whole, 0, 0, hit, _EVENTS))
            matches.update(dict.fromkeys(candidates.slots(on_gpu), match))
        if predicted:
            match = tuple.__new__(Match, (whole, 0, 0, hit, _PREDICTED))
            matches.update(dict.fromkeys(candidates.slots(predicted), match))
    return left


def match_one(path: Path, candidate: Candidate, depth: int, unit: int, prompt_tokens: int) -> Match | None:
    """The match of an endpoint that holds the first ``depth`` blocks, whatever there is about it; None if that is no
    whole block of its engine. ``path``: of the prompt."""
    if candidate.evicted:
        depth = _before_evicted(path, candidate.evicted, depth)
    size = max(unit, candidate.block_size or candidate.endpoint.metrics.block_size)
    whole = depth * unit // size * size
    if not whole:
        return None
    depth, column = whole // unit, candidate.column
    gpu, cpu = _tiers(path, candidate, depth)
    chunk, at = _place(path, depth - 1)
    bit = 1 << at
    predicted = not chunk.held(column) & bit and bool(chunk.held(column + PREDICTED) & bit)
    hit = max(0, min(whole, (prompt_tokens - 1) // size * size))
    source = _PREDICTED if predicted else _EVENTS
    return tuple.__new__(Match, (gpu * unit, cpu * unit, (depth - gpu - cpu) * unit, hit, source))


def deeper(by_events: Match, approximate: Match) -> Match:
    """The approximate match, which is longer; what events report on other tiers is there."""
    return approximate._replace(
        gpu=approximate.tokens - by_events.cpu - by_events.storage, cpu=by_events.cpu, storage=by_events.storage
    )


def _place(path: Path, block: int) -> tuple[BlockChunk, int]:
    """The chunk of a block of the path, and its offset there."""
    for chunk, shared in path:
        if block < shared:
            return chunk, block
        block -= shared
    raise IndexError(block)


def _before_evicted(path: Path, evicted: Mapping[BlockChunk, int], depth: int) -> int:
    """How many of the first ``depth`` blocks come before any that will be evicted."""
    position = 0
    for chunk, shared in path:
        if position >= depth:
            break
        if gone := evicted.get(chunk, 0) & LEADING[shared]:
            return min(depth, position + (gone & -gone).bit_length() - 1)
        position += shared
    return depth


def _tiers(path: Path, candidate: Candidate, depth: int) -> tuple[int, int]:
    """How many of the first ``depth`` blocks are best found on the GPU, and on the CPU. Predicted ones will be on the
    GPU."""
    column = candidate.column
    gpu = cpu = position = 0
    for chunk, shared in path:
        count = min(shared, depth - position)
        if count <= 0:
            break
        position += shared
        full, part = chunk.full >> column, chunk.part
        if (full & 1 and candidate.gpu) or full >> PREDICTED & 1:
            gpu += count
            continue
        on_gpu = chunk.held(column + PREDICTED)
        if part and candidate.gpu:
            on_gpu |= part.get(column, 0)
        on_gpu &= LEADING[count]
        gpu += on_gpu.bit_count()
        cpu += (chunk.held(column + Layer.CPU) & LEADING[count] & ~on_gpu).bit_count()
    return gpu, cpu
