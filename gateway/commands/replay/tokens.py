"""Block ids as token ids and as KV events, so that a match goes through the index as in production."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import cast

from gateway.kvcache.index.events import HASH_MASK, BlockRemoved, BlockStored, Event
from simulator.virtual.pool import PoolEvent, Stored, Tier

TOKEN_MASK = (1 << 32) - 1
"""Token ids have 32 bits."""


def token_ids(blocks: Sequence[int], block_size: int) -> array[int]:
    """Make each block ``block_size`` times one number. A block's key depends on all blocks before it, so an id that was
    reduced to 32 bits could be confused only with another one behind the same block."""
    try:
        folded = array("I", blocks)
    except OverflowError:
        folded = array("I", [(block ^ block >> 32) & TOKEN_MASK for block in blocks])
    ids = array("I", bytes(len(folded) * block_size * folded.itemsize))
    for position in range(block_size):  # far fewer than blocks, and each is one loop in C
        ids[position::block_size] = folded
    return ids


def as_event(event: PoolEvent, block_size: int) -> Event:
    """An event as vLLM sends it. The hashes are the ids."""
    hashes = _hashes(event.ids)
    if not isinstance(event, Stored):
        return BlockRemoved(hashes, medium=event.tier.value)
    if event.tier is not Tier.GPU:
        return BlockStored(hashes, medium=event.tier.value)
    return BlockStored(
        hashes,
        parent_block_hash=None if event.parent is None else event.parent & HASH_MASK,
        token_ids=cast(list[int], token_ids(event.ids, block_size)),  # a list from the wire, an array from here
        block_size=block_size,
        medium=Tier.GPU.value,
    )


def _hashes(ids: Sequence[int]) -> list[int | bytes]:
    return [each & HASH_MASK for each in ids]
