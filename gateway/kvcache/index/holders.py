"""How far each endpoint holds a prompt: one walk along the prompt's chunks for all endpoints, as bitmaps. Pure, exact.

Most endpoints hold equally much. So the answer is groups: a bitmap of endpoints, and the depth they have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from gateway.kvcache.index.block_table import LEADING, BlockChunk, BlockTable
from gateway.kvcache.index.layers import PREDICTED, Layer

# As plain integers: to look up an enum's member takes as long as a chunk does.
ON_GPU = (int(Layer.GPU), PREDICTED)
PREDICTED_ONLY = (PREDICTED, PREDICTED)
APPROXIMATE = (int(Layer.APPROXIMATE), int(Layer.APPROXIMATE))
BELOW = (int(Layer.CPU), int(Layer.STORAGE))

Group: TypeAlias = tuple[int, int, BlockChunk, int]
"""Endpoints that hold the same number of leading blocks, 1 or more: bitmap of their first columns; number of blocks;
the last one's chunk; its offset there."""


def holders(
    keys: Sequence[int],
    table: BlockTable,
    alive: int,
    best: tuple[int, int] = ON_GPU,
    others: tuple[int, ...] = (),
) -> tuple[list[Group], int]:
    """The endpoints of ``alive`` that hold something of a prompt on one of the layers ``best`` or ``others``.

    ``alive``: bitmap of first columns. Also returns a bitmap of the endpoints that hold some of these blocks on
    ``others`` only.
    """
    first, second = best
    heads, position, count = table.heads, 0, len(keys)
    groups: list[Group] = []
    mixed = at = 0
    last: BlockChunk | None = None
    while position < count and alive:
        chunk = heads.get(keys[position])
        if chunk is None:
            break
        own = chunk.keys
        shared = len(own)
        if position + shared > count or own[-1] != keys[position + shared - 1]:
            shared = chunk.common_prefix(keys, position)
        full = chunk.full
        missing = alive & ~(full >> first)
        if missing:
            missing &= ~(full >> second)
        if missing and others:
            on_others = missing & _folded(full, others)
            mixed |= on_others
            missing ^= on_others
        if missing:
            ends = {0: missing}
            if chunk.part:
                ends, more = _ends(chunk.part, missing, shared, best, others)
                mixed |= more
            for leading, mask in ends.items():
                alive ^= mask
                if leading:
                    groups.append((mask, position + leading, chunk, leading - 1))
                elif last is not None:
                    groups.append((mask, position, last, at))
        position += shared
        last, at = chunk, shared - 1
    if alive and last is not None:
        groups.append((alive, position, last, at))
    return groups, mixed


def _ends(
    part: Mapping[int, int], missing: int, shared: int, best: Sequence[int], others: Sequence[int]
) -> tuple[dict[int, int], int]:
    """Leading blocks -> bitmap of the endpoints of ``missing`` that hold no more of a chunk's first ``shared``.

    ``part``: the chunk's. ``best``, ``others``: layers that count; no endpoint of ``missing`` holds all of the chunk on
    one of them. Also returns a bitmap of the endpoints that hold some of these blocks on ``others`` only.
    """
    ends: dict[int, int] = {}
    mixed, wanted = 0, LEADING[shared]
    if missing.bit_count() > len(part):
        some = missing & _folded(_bits(part), (*best, *others))
        if missing != some:
            ends[0] = missing ^ some
        missing = some
    while missing:
        bit = missing & -missing
        missing ^= bit
        column = bit.bit_length() - 1
        held = 0
        for layer in best:
            held |= part.get(column + layer, 0)
        if held & wanted == wanted:
            continue
        leading = leading_best = _leading(held)
        if others:
            for layer in others:
                held |= part.get(column + layer, 0)
            leading = _leading(held)
            if leading_best < leading:
                mixed |= bit
        if leading < shared:
            ends[leading] = ends.get(leading, 0) | bit
    return ends, mixed


def _folded(mask: int, layers: Iterable[int]) -> int:
    """First columns of the endpoints with a column of ``layers`` in ``mask``; other bits are set, too."""
    folded = 0
    for layer in layers:
        folded |= mask >> layer
    return folded


def _bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _leading(held: int) -> int:
    """How many of the lowest bits are set, without a gap."""
    return (~held & held + 1).bit_length() - 1
