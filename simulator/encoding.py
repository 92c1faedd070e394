"""KV events as bytes: msgpack, as vLLM 0.32 writes them (maps) and as it did before 0.24 (arrays)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from simulator.blocks import Cleared, KvEvent, Removed, Stored

MEDIUM = "GPU"
GROUP = 0
KIND = "full_attention"
"""What a model with one group of plain attention says of its blocks."""

WORD = 2**64 - 1
"""Integer hashes are the last 64 bits of the name, unsigned."""

_encode = msgspec.msgpack.Encoder().encode


def encode_batch(at: float, events: Sequence[KvEvent], rank: int, *, positional: bool, raw_hashes: bool) -> bytes:
    """One step's events. ``at``: seconds since the epoch. ``raw_hashes``: 32 bytes instead of integers."""
    encode_event = _as_array if positional else _as_map
    return _encode([at, [encode_event(event, raw_hashes) for event in events], rank])


def _as_map(event: KvEvent, raw: bool) -> dict[str, Any]:
    if isinstance(event, Stored):
        return {
            "type": "BlockStored",
            "block_hashes": [_hash(name, raw) for name in event.hashes],
            "parent_block_hash": None if event.parent is None else _hash(event.parent, raw),
            "token_ids": list(event.tokens),
            "block_size": event.block_size,
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": event.adapter,
            "extra_keys": [None if keys is None else list(keys) for keys in event.extra],
            "group_idx": GROUP,
            "kv_cache_spec_kind": KIND,
        }
    if isinstance(event, Removed):
        return {
            "type": "BlockRemoved",
            "block_hashes": [_hash(event.hash, raw)],
            "medium": MEDIUM,
            "group_idx": GROUP,
        }
    return {"type": "AllBlocksCleared"}


def _as_array(event: KvEvent, raw: bool) -> list[Any]:
    if isinstance(event, Cleared):
        return ["AllBlocksCleared"]
    fields = _as_map(event, raw)
    # The fields as they stood in 0.19: vLLM wrote them in this order, and left no hole.
    return list(fields.values())


def _hash(name: bytes, raw: bool) -> int | bytes:
    return name if raw else int.from_bytes(name, "big") & WORD
