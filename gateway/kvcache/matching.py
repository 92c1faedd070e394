"""What each endpoint holds of a prompt: one way along the prompt's stretches for all of them. Pure, and exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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


Path: TypeAlias = list[tuple[Stretch, int]]
"""(stretch, how many of its blocks) that a prompt leads through."""


def match_estimated(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], shelf: Shelf
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of those that probably hold something."""
    depths, _ = _depths(shelf.path(keys), _bits(candidates), (Layer.ESTIMATED,))
    for candidate in candidates:
        if whole := _whole(candidate, depths.get(candidate.place, 0), keys.unit):
            hit = _expected(candidate, whole, prompt_tokens, keys.unit)
            yield candidate.slot, Match(gpu=whole, expected_hit=hit, source=Source.ESTIMATED)


def match_told(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], shelf: Shelf, *, below: bool = True
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of those that hold something by their engine's events, or will by what was just sent there.

    ``below``: whether anything is on tiers below the GPU.
    """
    unit = keys.unit
    path = list(shelf.path(keys))
    layers = (Layer.GPU, Layer.PREDICTED, Layer.CPU, Layer.STORAGE) if below else (Layer.GPU, Layer.PREDICTED)
    depths, mixed = _depths(path, _bits([each for each in candidates if each.gpu]), layers)
    if resetting := [each for each in candidates if not each.gpu]:
        depths |= _depths(path, _bits(resetting), layers[1:])[0]
        mixed |= _bits(resetting)
    ends = list(accumulate(shared for _, shared in path))
    for candidate in candidates:
        place = candidate.place
        if place not in depths or not (whole := _whole(candidate, depths[place], unit)):
            continue
        depth = whole // unit
        gpu, cpu = _tiers(path, candidate, depth) if mixed >> place & 1 else (depth, 0)
        last = bisect_left(ends, depth)
        stretch, shared = path[last]
        offset = depth - 1 - (ends[last] - shared)
        yield (
            candidate.slot,
            Match(
                gpu=gpu * unit,
                cpu=cpu * unit,
                storage=(depth - gpu - cpu) * unit,
                expected_hit=_expected(candidate, whole, prompt_tokens, unit),
                source=Source.PREDICTED if stretch.held(place + Layer.PREDICTED) >> offset & 1 else Source.EVENTS,
            ),
        )


def deeper(told: Match, estimated: Match) -> Match:
    """What is estimated, where that is more; what events say to be on other tiers is there."""
    return replace(estimated, gpu=estimated.tokens - told.cpu - told.storage, cpu=told.cpu, storage=told.storage)


def _depths(path: Iterable[tuple[Stretch, int]], alive: int, layers: Sequence[Layer]) -> tuple[dict[int, int], int]:
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
                some = _folded(sum(1 << place for place in part), layers)
                for place in places(missing & some):
                    held_best = held = 0
                    for layer in best:
                        held_best |= part.get(place + layer, 0)
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


def _folded(mask: int, layers: Sequence[Layer]) -> int:
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
        if (full & 1 and candidate.gpu) or full >> Layer.PREDICTED & 1:
            gpu += count
            continue
        on_gpu = stretch.held(place + Layer.PREDICTED)
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
