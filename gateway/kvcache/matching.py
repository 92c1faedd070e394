"""What each endpoint holds of a prompt: one way along the prompt's stretches for all of them. Pure, and exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from gateway.framework import Match, Source
from gateway.kvcache.keys import BlockKeys
from gateway.kvcache.layers import Layer
from gateway.kvcache.shelf import ALL, Shelf, Stretch, places


@dataclass(slots=True)
class Candidate:
    """One endpoint. ``place``: on the shelf. ``block_size``: tokens of its engine's blocks; 0 if not known.

    ``gpu``: whether what is said of its GPU counts. While a reset is worked through, it does not.
    """

    slot: int
    place: int
    block_size: int
    gpu: bool = True


# As plain numbers, and in the order in which they are looked at: a prompt is held against them at each stretch.
PREDICTED = int(Layer.PREDICTED)
_GPU = (int(Layer.GPU), PREDICTED)
_ALL_TIERS = (*_GPU, int(Layer.CPU), int(Layer.STORAGE))
_ESTIMATED = (int(Layer.ESTIMATED),)

Path: TypeAlias = list[tuple[Stretch, int]]
"""(stretch, how many of its blocks) that a prompt leads through."""


def match_estimated(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], shelf: Shelf
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of those that probably hold something."""
    depths, _ = _depths(shelf.path(keys), _bits(candidates), _ESTIMATED)
    for candidate in candidates:
        if whole := _whole(candidate, depths.get(candidate.place, 0), keys.unit):
            hit = _expected(candidate, whole, prompt_tokens, keys.unit)
            yield candidate.slot, Match(whole, 0, 0, hit, Source.ESTIMATED)


def match_told(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], shelf: Shelf, *, below: bool = True
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of those that hold something by their engine's events, or will by what was just sent there.

    ``below``: whether anything is on tiers below the GPU.
    """
    unit = keys.unit
    path = list(shelf.path(keys))
    if not path:
        return
    layers = _ALL_TIERS if below else _GPU
    alive = resetting = 0
    for candidate in candidates:
        if candidate.gpu:
            alive |= 1 << candidate.place
        else:
            resetting |= 1 << candidate.place
    depths, mixed = _depths(path, alive, layers)
    if resetting:
        depths |= _depths(path, resetting, layers[1:])[0]
        mixed |= resetting
    ends = list(accumulate([shared for _, shared in path]))
    # Most of them hold equally much: what follows from that is found once.
    depth, last, offset = 0, path[0][0], 0
    for candidate in candidates:
        place = candidate.place
        found = depths.get(place, 0)
        size = candidate.block_size
        if size > unit:
            found = found * unit // size * size // unit
        else:
            size = unit
        if not found:
            continue
        if found != depth:
            depth = found
            number = bisect_left(ends, depth)
            last, shared = path[number]
            offset = depth - 1 - (ends[number] - shared)
        whole = gpu = depth * unit
        cpu = 0
        if mixed >> place & 1:
            gpu, cpu = _tiers(path, candidate, depth)
            gpu, cpu = gpu * unit, cpu * unit
        # Engines always compute a prompt's last token, and hold whole blocks only.
        most = (prompt_tokens - 1) // size * size
        predicted = place + PREDICTED
        foreseen = last.full >> predicted & 1 or (last.part and last.part.get(predicted, 0) >> offset & 1)
        yield (
            candidate.slot,
            Match(
                gpu,
                cpu,
                whole - gpu - cpu,
                whole if whole < most else max(0, most),
                Source.PREDICTED if foreseen else Source.EVENTS,
            ),
        )


def deeper(told: Match, estimated: Match) -> Match:
    """What is estimated, where that is more; what events say to be on other tiers is there."""
    return estimated._replace(gpu=estimated.tokens - told.cpu - told.storage, cpu=told.cpu, storage=told.storage)


def _depths(path: Iterable[tuple[Stretch, int]], alive: int, layers: Sequence[int]) -> tuple[dict[int, int], int]:
    """Place -> how many leading blocks it holds, in whichever of ``layers``; places that hold none are left out.

    ``alive``: the endpoints' own places. ``layers``: the first two are as good as each other. Returned, too: a bit for
    each place that has some of its blocks in none of these two.
    """
    best, rest = layers[:2], layers[2:]
    left: list[tuple[int, int]] = []
    position = mixed = 0
    for stretch, shared in path:
        full = stretch.full
        on_best = _folded(full, best)
        if alive & ~on_best:
            whole = on_best | _folded(full, rest)
            mixed |= alive & whole & ~on_best
            missing, part = alive & ~whole, stretch.part
            if missing and part:
                some = 0
                for place in part:
                    some |= 1 << place
                some = _folded(some, layers)
                wanted = ALL[shared]
                for place in places(missing & some):
                    held_best = held = 0
                    for layer in best:
                        held_best |= part.get(place + layer, 0)
                    if held_best & wanted == wanted:
                        continue
                    for layer in rest:
                        held |= part.get(place + layer, 0)
                    leading, leading_best = _leading(held | held_best), _leading(held_best)
                    if leading_best < leading and leading_best < shared:
                        mixed |= 1 << place
                    if leading < shared:
                        alive ^= 1 << place
                        left.append((1 << place, position + leading))
                missing &= ~some
            if missing:
                alive ^= missing
                left.append((missing, position))
            if not alive:
                break
        position += shared
    left.append((alive, position))
    return {place: depth for mask, depth in left if depth for place in places(mask)}, mixed


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


def _bits(candidates: Sequence[Candidate]) -> int:
    bits = 0
    for candidate in candidates:
        bits |= 1 << candidate.place
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
