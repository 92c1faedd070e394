"""What each endpoint holds of a prompt: one walk along the chunks of the prompt for all endpoints. Pure, and exact.

Matches are made by ``tuple.__new__``: to call a named tuple's class is a call of Python more for each endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.framework.match import NO_MATCH, Match, Source
from gateway.kvcache.index.block_table import LEADING, BlockChunk, BlockTable
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.index.layers import PREDICTED, Layer


@dataclass(slots=True)
class Candidate:
    """One endpoint. ``column``: its first in the block table. ``block_size``: tokens of an engine block, 0 if unknown.

    ``gpu``: whether its GPU column counts; false while a reset is worked through. ``evicted``: chunk -> bits of the
    blocks that it will have evicted by the time that it starts the prompt.
    """

    slot: int
    column: int
    block_size: int
    gpu: bool = True
    evicted: Mapping[BlockChunk, int] = field(default_factory=dict)


# As plain integers, and in the order in which they are compared: a prompt is compared with them at each chunk.
_GPU = (int(Layer.GPU), PREDICTED)
_ALL_TIERS = (*_GPU, int(Layer.CPU), int(Layer.STORAGE))
_APPROXIMATE = (int(Layer.APPROXIMATE), int(Layer.APPROXIMATE))

# To look up an enum's member takes as long as all else that is done for one candidate.
_EVENTS, _PREDICTED, _ESTIMATED = Source.EVENTS, Source.PREDICTED, Source.ESTIMATED

NO_PART: Mapping[int, int] = {}

Path: TypeAlias = list[tuple[BlockChunk, int]]
"""(chunk, number of its leading blocks) along a prompt."""


def match_approximate(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], table: BlockTable
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of the endpoints that probably hold something, by what was sent there."""
    alive = 0
    for candidate in candidates:
        alive |= 1 << candidate.column
    depths, _ = _depths(table.path(keys), alive, _APPROXIMATE)
    unit = keys.unit
    for candidate in candidates:
        size = candidate.block_size if candidate.block_size > unit else unit
        if whole := depths.get(candidate.column, 0) * unit // size * size:
            hit = max(0, min(whole, (prompt_tokens - 1) // size * size))
            yield candidate.slot, tuple.__new__(Match, (whole, 0, 0, hit, _ESTIMATED))


def match_from_events(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], table: BlockTable, *, below: bool
) -> dict[int, Match]:
    """Slot -> match of the endpoints that hold something by their engine's events, or will by what was just sent there.

    ``below``: whether anything is on tiers below the GPU.
    """
    matches: dict[int, Match] = {}
    unit = keys.unit
    path = table.path(keys)
    if not path:
        return matches
    layers = _ALL_TIERS if below else _GPU
    alive = resetting = 0
    for candidate in candidates:
        if candidate.gpu:
            alive |= 1 << candidate.column
        else:
            resetting |= 1 << candidate.column
    depths, mixed = _depths(path, alive, layers)
    if resetting:
        depths |= _depths(path, resetting, _ALL_TIERS[1:])[0]
        mixed |= resetting
    # Most endpoints hold equally much: what follows from that is made once.
    match, made_of = NO_MATCH, None
    last, begin, end = _chunk_of(path, 0)
    for candidate in candidates:
        column = candidate.column
        depth = depths.get(column)
        if depth is None:
            continue
        if candidate.evicted:
            depth = _before_evicted(path, candidate.evicted, depth)
        # The engine will serve whole blocks from its cache, and always computes the last token.
        size = candidate.block_size if candidate.block_size > unit else unit
        whole = depth * unit // size * size
        if not whole:
            continue
        depth = whole // unit
        if not begin < depth <= end:
            last, begin, end = _chunk_of(path, depth - 1)
        full, part, at = last.full >> column, last.part or NO_PART, depth - 1 - begin
        predicted = not (full & 1 or part.get(column, 0) >> at & 1) and bool(
            full >> PREDICTED & 1 or part.get(column + PREDICTED, 0) >> at & 1
        )
        is_mixed = mixed >> column & 1
        if is_mixed or made_of != (whole, size, predicted):
            gpu, cpu = _tiers(path, candidate, depth) if is_mixed else (depth, 0)
            hit = max(0, min(whole, (prompt_tokens - 1) // size * size))
            source = _PREDICTED if predicted else _EVENTS
            match = tuple.__new__(Match, (gpu * unit, cpu * unit, (depth - gpu - cpu) * unit, hit, source))
            made_of = None if is_mixed else (whole, size, predicted)
        matches[candidate.slot] = match
    return matches


def _chunk_of(path: Path, block: int) -> tuple[BlockChunk, int, int]:
    """The chunk of a block of the path; the first block of it, and the first one behind it."""
    end = 0
    for chunk, shared in path:
        begin, end = end, end + shared
        if block < end:
            return chunk, begin, end
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


def deeper(by_events: Match, approximate: Match) -> Match:
    """The approximate match, which is longer; what events report on other tiers is there."""
    return approximate._replace(
        gpu=approximate.tokens - by_events.cpu - by_events.storage, cpu=by_events.cpu, storage=by_events.storage
    )


def _depths(path: Iterable[tuple[BlockChunk, int]], alive: int, layers: Sequence[int]) -> tuple[dict[int, int], int]:
    """Column -> how many leading blocks it holds, in any of ``layers``; columns that hold none are left out.

    ``alive``: bitmap of the endpoints' first columns. ``layers``: two or more; the first two are as good as each other.
    Also returns a bitmap of the columns that have some of their blocks in neither of these two.
    """
    first, second, rest = layers[0], layers[1], layers[2:]
    left: list[tuple[int, int]] = []
    position = mixed = 0
    for chunk, shared in path:
        full = chunk.full
        missing = alive & ~(full >> first | full >> second)
        if missing:
            if rest:
                on_rest = missing & _folded(full, rest)
                mixed |= on_rest
                missing ^= on_rest
            part = chunk.part
            if missing and part:
                some = missing & _folded(_bits(part), layers) if missing.bit_count() > len(part) else missing
                missing ^= some
                wanted = LEADING[shared]
                while some:
                    bit = some & -some
                    some ^= bit
                    column = bit.bit_length() - 1
                    held = part.get(column + first, 0) | part.get(column + second, 0)
                    if held & wanted == wanted:
                        continue
                    leading = leading_best = _leading(held)
                    if rest:
                        for layer in rest:
                            held |= part.get(column + layer, 0)
                        leading = _leading(held)
                        if leading_best < leading:
                            mixed |= bit
                    if leading < shared:
                        alive ^= bit
                        left.append((bit, position + leading))
            if missing:
                alive ^= missing
                left.append((missing, position))
            if not alive:
                break
        position += shared
    left.append((alive, position))
    depths = {}
    for mask, depth in left:
        while mask and depth:
            bit = mask & -mask
            mask ^= bit
            depths[bit.bit_length() - 1] = depth
    return depths, mixed


def _folded(mask: int, layers: Sequence[int]) -> int:
    """The endpoints' first columns whose columns of any of ``layers`` are in ``mask``; other bits are set, too."""
    folded = 0
    for layer in layers:
        folded |= mask >> layer
    return folded


def _leading(held: int) -> int:
    """How many of the lowest bits are set, without a gap."""
    return (~held & held + 1).bit_length() - 1


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


def _bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits
