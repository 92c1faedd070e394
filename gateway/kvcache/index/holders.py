"""How far each endpoint holds a prompt: one walk along the prompt's chunks for all endpoints, as bitmaps. Pure, exact.

Most endpoints hold equally much. So the answer is groups: a bitmap of endpoints, and the depth they have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from gateway.kvcache.index.block_table import LEADING, BlockChunk, BlockTable
from gateway.kvcache.index.layers import PREDICTED, Layer

CPU, STORAGE, APPROXIMATE = int(Layer.CPU), int(Layer.STORAGE), int(Layer.APPROXIMATE)
"""As plain integers: to look up an enum's member takes as long as a chunk does."""

BEST = (int(Layer.GPU), PREDICTED)
BELOW = (CPU, STORAGE)

Group: TypeAlias = tuple[int, int, BlockChunk, int]
"""Endpoints that hold the same number of leading blocks, 1 or more: bitmap of their first columns; number of blocks;
the last one's chunk; its offset there."""


def holders(
    keys: Sequence[int], table: BlockTable, alive: int, *, gpu: bool = True, below: bool = False
) -> tuple[list[Group], int]:
    """The endpoints of ``alive`` that hold something of a prompt by their engine's events or by predictions.

    ``alive``: bitmap of first columns. ``gpu``: their GPU columns count. ``below``: those of the tiers below do, too.
    Also returns a bitmap of the endpoints of which some blocks of these are on tiers below only.
    """
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
        missing = alive & ~full if gpu else alive
        if missing:
            missing &= ~(full >> PREDICTED)
        if missing and below:
            on_below = missing & (full >> CPU | full >> STORAGE)
            mixed |= on_below
            missing ^= on_below
        if missing:
            ends, on_others = _ends(chunk, missing, shared, BEST if gpu else BEST[1:], BELOW if below else ())
            mixed |= on_others
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


def approximate_holders(keys: Sequence[int], table: BlockTable, alive: int) -> list[tuple[int, int]]:
    """The endpoints of ``alive`` that hold something by what was sent there: (bitmap of first columns, blocks)."""
    position = 0
    groups: list[tuple[int, int]] = []
    for chunk, shared in table.path(keys):
        missing = alive & ~(chunk.full >> APPROXIMATE)
        if missing:
            for leading, mask in _ends(chunk, missing, shared, (APPROXIMATE,), ())[0].items():
                alive ^= mask
                if position + leading:
                    groups.append((mask, position + leading))
            if not alive:
                break
        position += shared
    if alive and position:
        groups.append((alive, position))
    return groups


def _ends(
    chunk: BlockChunk, missing: int, shared: int, best: Sequence[int], others: Sequence[int]
) -> tuple[dict[int, int], int]:
    """Leading blocks -> bitmap of the endpoints of ``missing`` that hold no more of a chunk's first ``shared``.

    ``best``, ``others``: layers that count; no endpoint of ``missing`` holds all of the chunk on one of them. Also
    returns a bitmap of the endpoints that hold some of these blocks on ``others`` only.
    """
    part = chunk.part
    if not part:
        return {0: missing}, 0
    ends: dict[int, int] = {}
    mixed, wanted = 0, LEADING[shared]
    if missing.bit_count() > len(part):
        some = missing & _endpoints(part, (*best, *others))
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


def _endpoints(part: Iterable[int], layers: Iterable[int]) -> int:
    """First columns of the endpoints with one of these columns among ``layers``; other bits are set, too."""
    bits = folded = 0
    for column in part:
        bits |= 1 << column
    for layer in layers:
        folded |= bits >> layer
    return folded


def _leading(held: int) -> int:
    """How many of the lowest bits are set, without a gap."""
    return (~held & held + 1).bit_length() - 1
