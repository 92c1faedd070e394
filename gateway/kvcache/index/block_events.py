"""What engines report of their blocks, as typed events. Hashes are the low 64 bits, whichever form an engine sends."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from gateway.kvcache.index.layers import Layer, tier_of

HASH_MASK = (1 << 64) - 1
"""Old engines sent signed numbers; new ones the low 64 bits of a digest."""

Hash: TypeAlias = int | bytes


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True, gc=False):
    """Blocks that an engine holds from now on: a contiguous run behind ``parent_block_hash`` (None: from the start).

    ``block_size``: tokens; 0, and no ``token_ids``, if only a tier is reported. ``extra_keys``: what else than tokens
    is in each block's hash: the adapter's name, media, the cache salt, a digest of embeddings. A field of which nothing
    is used is ``Any``: a value that does not fit its type makes the whole event ``malformed``.
    """

    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Any = None
    locality: Any = None
    ownership: Any = None
    session_id: Any = None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True, gc=False):
    """Copies of blocks that an engine has evicted."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: Any = None
    ownership: Any = None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True, gc=False):
    """The engine's GPU cache was reset."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


def short(value: Hash) -> int:
    """A hash as one 64-bit number."""
    return value & HASH_MASK if isinstance(value, int) else int.from_bytes(value[-8:], "big")


def all_short(hashes: list[Hash]) -> list[int]:
    """``short`` of each; the list itself where all are short already."""
    try:
        if min(hashes) >= 0:  # type: ignore[operator]  # a list of numbers, mostly; else it raises
            return hashes  # type: ignore[return-value]
    except TypeError:
        pass
    return [short(value) for value in hashes]


def has_only_tokens(event: BlockStored) -> bool:
    """Whether its blocks' hashes are of nothing but tokens, what is before them, and the adapter of ``lora_name``: then
    ``parse_extra_keys`` has nothing to read. A field that changes what a block is belongs in here."""
    return event.lora_id is None and (event.extra_keys is None or not any(event.extra_keys))


def is_keyed(event: BlockStored) -> bool:
    """Whether block keys can be made of it. On other tiers salts and adapters may be missing, so that tokens prove
    nothing."""
    return bool(event.token_ids) and (event.medium == "GPU" or tier_of(event.medium) is Layer.GPU)


def is_tail(event: BlockStored, block_size: int) -> bool:
    """Whether it reports the end of a prompt within a block. ``block_size``: the engine's; 0: unknown.

    Hybrid models keep one for the prompt's last whole unit of hashing, under a hash of its own behind one that is never
    announced. Source: ``FullAttentionManager._cache_partial_tail_block`` in vLLM 0.32.
    """
    size = event.block_size
    return len(event.block_hashes) == 1 and 0 < size < block_size and not block_size % size
