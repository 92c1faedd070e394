"""What each endpoint holds of a prompt, from the masks of who holds which key. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.framework import Match, Source
from gateway.kvcache.keys import BlockKeys
from gateway.kvcache.search import covered, depths

Masks: TypeAlias = Mapping[int, int]
"""Key -> a bit for each place that holds it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint. ``place``: of its bit. ``block_size``: tokens of its engine's blocks; 0 if not known."""

    slot: int
    place: int
    block_size: int


def match_estimated(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], estimated: Masks
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of those that probably hold something."""
    found = depths(keys, _any_of(estimated), _bits(candidates))
    for candidate in candidates:
        if whole := _whole(candidate, found.get(candidate.place, 0), keys.unit):
            hit = _expected(candidate, whole, prompt_tokens, keys.unit)
            yield candidate.slot, Match(gpu=whole, expected_hit=hit, source=Source.ESTIMATED)


def match_told(
    keys: BlockKeys, prompt_tokens: int, candidates: Sequence[Candidate], tiers: Sequence[Masks], predicted: Masks
) -> Iterator[tuple[int, Match]]:
    """(slot, match) of those that hold something by their engine's events, or will by what was just sent there."""
    unit = keys.unit
    gpu, cpu, storage = tiers
    on_gpu = _any_of(gpu, predicted)
    found = depths(keys, _any_of(gpu, predicted, cpu, storage), _bits(candidates))
    wholes: dict[int, int] = {}
    for candidate in candidates:
        if whole := _whole(candidate, found.get(candidate.place, 0), unit):
            wholes[candidate.place] = whole // unit
    gpus, cpus = wholes, dict.fromkeys(wholes, 0)
    if wholes and (cpu or storage):
        gpus = covered(keys, on_gpu, wholes)
        cpus = covered(keys, lambda key: cpu.get(key, 0) & ~on_gpu(key), wholes) if cpu else cpus
    for candidate in candidates:
        place = candidate.place
        depth = wholes.get(place)
        if depth is None:
            continue
        new = predicted and predicted.get(keys[depth - 1], 0) >> place & 1
        yield (
            candidate.slot,
            Match(
                gpu=gpus[place] * unit,
                cpu=cpus[place] * unit,
                storage=(depth - gpus[place] - cpus[place]) * unit,
                expected_hit=_expected(candidate, depth * unit, prompt_tokens, unit),
                source=Source.PREDICTED if new else Source.EVENTS,
            ),
        )


def _bits(candidates: Sequence[Candidate]) -> int:
    bits = 0
    for candidate in candidates:
        bits |= 1 << candidate.place
    return bits


def _any_of(*masks: Masks) -> Callable[[int], int]:
    """Key -> who holds it in any of ``masks``; empty ones cost nothing."""
    first, *others = [each for each in masks if each] or [{}]
    get = first.get
    if not others:
        return lambda key: get(key, 0)
    if len(others) == 1:
        again = others[0].get
        return lambda key: get(key, 0) | again(key, 0)

    def held(key: int) -> int:
        mask = get(key, 0)
        for other in others:
            mask |= other.get(key, 0)
        return mask

    return held


def _whole(candidate: Candidate, depth: int, unit: int) -> int:
    """Tokens of the engine's whole blocks in ``depth`` keys."""
    size = max(candidate.block_size, unit)
    return depth * unit // size * size


def _expected(candidate: Candidate, whole: int, prompt_tokens: int, unit: int) -> int:
    """Engines always compute a prompt's last token, and hold whole blocks only."""
    size = max(candidate.block_size, unit)
    return max(0, min(whole, (prompt_tokens - 1) // size * size))
