"""What each endpoint holds of a prompt: one way along the prompt's stretches for all of them. Pure, and exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.framework import Match, Source
from gateway.kvcache.keys import BlockKeys
from gateway.kvcache.layers import Layer
from gateway.kvcache.shelf import ALL, Shelf, Stretch


@dataclass(slots=True)
class Candidate:
    """One endpoint. ``place``: on the shelf. ``block_size``: tokens of its engine's blocks; 0 if not known.

    ``gpu``: whether what is said of its GPU counts. While a reset is worked through, it does not. ``going``: stretch ->
    bits of what it will have evicted by the time that it comes to the prompt.
    """

    slot: int
    place: int
    block_size: int
    gpu: bool = True
    going: Mapping[Stretch, int] = field(default_factory=dict)


# As plain numbers, and in the order in which they are looked at: a prompt is held against them at each stretch.
PREDICTED = int(Layer.PREDICTED)
_GPU = (int(Layer.GPU), PREDICTED)
_ALL_TIERS = (*_GPU, int(Layer.CPU), int(Layer.STORAGE))
_ESTIMATED = (int(Layer.ESTIMATED), int(Layer.ESTIMATED))

# An enumeration's members take as long to look up as all the rest that is done for one candidate.
_EVENTS, _PREDICTED = Source.EVENTS, Source.PREDICTED

Path: TypeAlias = list[tuple[Stretch, int]]
"""(stretch, how many of its blocks) that a prompt leads through."""


def match_estimated(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], shelf: Shelf
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of those that probably hold something."""
    depths, _ = _depths(shelf.path(keys), _bits([each.place for each in candidates]), _ESTIMATED)
    for candidate in candidates:
        if whole := _whole(candidate, depths.get(candidate.place, 0), keys.unit):
            hit = _expected(candidate, whole, prompt_tokens, keys.unit)
            yield candidate.slot, Match(whole, 0, 0, hit, Source.ESTIMATED)


def match_told(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], shelf: Shelf, *, below: bool = True
) -> dict[int, Match]:
    """Slot -> match of those that hold something by their engine's events, or will by what was just sent there.

    ``below``: whether anything is on tiers below the GPU.
    """
    matches: dict[int, Match] = {}
    unit = keys.unit
    path = list(shelf.path(keys))
    if not path:
        return matches
    layers = _ALL_TIERS if below else _GPU
    alive = resetting = 0
    for candidate in candidates:
        if candidate.gpu:
            alive |= 1 << candidate.place
        else:
            resetting |= 1 << candidate.place
    depths, mixed = _depths(path, alive, layers)
    if resetting:
        depths |= _depths(path, resetting, _ALL_TIERS[1:])[0]
        mixed |= resetting
    match, depth, size, odd = None, 0, 0, 0
    for candidate in candidates:
        found = depths.get(candidate.place)
        if found is None:
            continue
        if candidate.going:
            found = _left(path, candidate.going, found)
            if not found:
                continue
        # Most of them hold equally much: what follows from that is found once.
        if found != depth or candidate.block_size != size or odd >> candidate.place & 1:
            size, depth = candidate.block_size, found
            match, last = _told(path, candidate, depth, mixed, unit, prompt_tokens)
            odd = mixed | _foretold(last)
            if odd >> candidate.place & 1:
                depth = 0
        if match is not None:
            matches[candidate.slot] = match
    return matches


def _told(
    path: Path, candidate: Candidate, depth: int, mixed: int, unit: int, prompt_tokens: int
) -> tuple[Match | None, Stretch]:
    """Of who holds ``depth`` blocks: None if they come to no block of its engine; and where the last of them is."""
    whole = _whole(candidate, depth, unit)
    depth = whole // unit
    at = position = 0
    while position + path[at][1] < depth:
        position += path[at][1]
        at += 1
    last = path[at][0]
    if not whole:
        return None, last
    place = candidate.place
    gpu, cpu = _tiers(path, candidate, depth) if mixed >> place & 1 else (depth, 0)
    foreseen = (last.held(place + PREDICTED) & ~last.held(place)) >> depth - 1 - position & 1
    return (
        Match(
            gpu * unit,
            cpu * unit,
            (depth - gpu - cpu) * unit,
            _expected(candidate, whole, prompt_tokens, unit),
            _PREDICTED if foreseen else _EVENTS,
        ),
        last,
    )


def _left(path: Path, going: Mapping[Stretch, int], depth: int) -> int:
    """How many of the first ``depth`` blocks come before any that goes."""
    position = 0
    for stretch, shared in path:
        if position >= depth:
            break
        if gone := going.get(stretch, 0) & ALL[shared]:
            return min(depth, position + (gone & -gone).bit_length() - 1)
        position += shared
    return depth


def _foretold(stretch: Stretch) -> int:
    """The endpoints' own places of those of which some of it is predicted and not all of it held; other bits are set,
    too."""
    return (stretch.full | _bits(stretch.part or ())) >> PREDICTED & ~stretch.full


def deeper(told: Match, estimated: Match) -> Match:
    """What is estimated, where that is more; what events say to be on other tiers is there."""
    return estimated._replace(gpu=estimated.tokens - told.cpu - told.storage, cpu=told.cpu, storage=told.storage)


def _depths(path: Iterable[tuple[Stretch, int]], alive: int, layers: Sequence[int]) -> tuple[dict[int, int], int]:
    """Place -> how many leading blocks it holds, in whichever of ``layers``; places that hold none are left out.

    ``alive``: the endpoints' own places. ``layers``: two or more; the first two are as good as each other. Returned,
    too: a bit for each place that has some of its blocks in none of these two.
    """
    first, second, rest = layers[0], layers[1], layers[2:]
    left: list[tuple[int, int]] = []
    position = mixed = 0
    for stretch, shared in path:
        full = stretch.full
        missing = alive & ~(full >> first | full >> second)
        if missing:
            if rest:
                on_rest = missing & _folded(full, rest)
                mixed |= on_rest
                missing ^= on_rest
            part = stretch.part
            if missing and part:
                some = missing & _folded(_bits(part), layers) if missing.bit_count() > len(part) else missing
                missing ^= some
                wanted = ALL[shared]
                while some:
                    bit = some & -some
                    some ^= bit
                    place = bit.bit_length() - 1
                    held = part.get(place + first, 0) | part.get(place + second, 0)
                    if held & wanted == wanted:
                        continue
                    leading = leading_best = _leading(held)
                    if rest:
                        for layer in rest:
                            held |= part.get(place + layer, 0)
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
    """The endpoints' own places of those whose places of any of ``layers`` are in ``mask``; other bits are set, too."""
    folded = 0
    for layer in layers:
        folded |= mask >> layer
    return folded


def _leading(held: int) -> int:
    """How many of the lowest bits are set, without a gap."""
    return (~held & held + 1).bit_length() - 1


def _tiers(path: Path, candidate: Candidate, depth: int) -> tuple[int, int]:
    """Blocks of the first ``depth`` that are best found on the GPU, and on the CPU. What is predicted will be there."""
    place = candidate.place
    gpu = cpu = position = 0
    for stretch, shared in path:
        count = min(shared, depth - position)
        if count <= 0:
            break
        position += shared
        full, part = stretch.full >> place, stretch.part
        if (full & 1 and candidate.gpu) or full >> PREDICTED & 1:
            gpu += count
            continue
        on_gpu = stretch.held(place + PREDICTED)
        if part and candidate.gpu:
            on_gpu |= part.get(place, 0)
        on_gpu &= ALL[count]
        gpu += on_gpu.bit_count()
        cpu += (stretch.held(place + Layer.CPU) & ALL[count] & ~on_gpu).bit_count()
    return gpu, cpu


def _bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _whole(candidate: Candidate, depth: int, unit: int) -> int:
    """Tokens of the engine's whole blocks in ``depth`` keys."""
    size = candidate.block_size
    return depth * unit // size * size if size > unit else depth * unit


def _expected(candidate: Candidate, whole: int, prompt_tokens: int, unit: int) -> int:
    """Engines always compute a prompt's last token, and hold whole blocks only."""
    size = candidate.block_size if candidate.block_size > unit else unit
    most = (prompt_tokens - 1) // size * size
    return max(0, min(whole, most))
