"""KV event messages, in every encoding that vLLM has used, as typed events.

Rules: one bad event never spoils its batch; what is not understood is counted by a short word and left out. Hashes are
the low 64 bits, whichever form an engine sends. Batches and events were positional arrays before vLLM 0.24, and
events are maps since; for a while batches were maps too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

HASH_MASK = (1 << 64) - 1
"""Old engines sent signed numbers; new ones the low 64 bits of a digest."""

Hash: TypeAlias = int | bytes


class BlockStored(msgspec.Struct, tag=True):
    """Blocks that an engine holds from now on: a contiguous run behind ``parent_block_hash`` (None: from the start)."""

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


class BlockRemoved(msgspec.Struct, tag=True):
    """Copies of blocks that an engine gave up."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The engine's GPU cache was reset."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(slots=True)
class Batch:
    """One message. ``rank``: data-parallel rank, if told. ``refused``: what was left out, by the reason's word."""

    events: list[Event] = field(default_factory=list)
    rank: int | None = None
    refused: Counter[str] = field(default_factory=Counter)


class _ArrayBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class _MapBatch(msgspec.Struct):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_BATCHES = (msgspec.msgpack.Decoder(_ArrayBatch), msgspec.msgpack.Decoder(_MapBatch))
_EVENT: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_ANY = msgspec.msgpack.Decoder()

_POSITIONS: dict[str, tuple[type[Event], tuple[str, ...]]] = {
    "BlockStored": (
        BlockStored,
        (
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
        ),
    ),
    "BlockRemoved": (BlockRemoved, ("block_hashes", "medium", "group_idx")),
    "AllBlocksCleared": (AllBlocksCleared, ()),
}
"""Fields of the positional form, in order; trailing ones may be absent, and newer ones are ignored."""


def decode(payload: bytes) -> Batch:
    """The events of one message. Never raises: an unreadable message is a batch with ``malformed-batch`` refused."""
    for decoder in _BATCHES:
        try:
            raw = decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        batch = Batch(rank=raw.data_parallel_rank)
        for one in raw.events:
            event = _event(one)
            if isinstance(event, str):
                batch.refused[event] += 1
            else:
                batch.events.append(event)
        return batch
    return Batch(refused=Counter({"malformed-batch": 1}))


def short(value: Hash) -> int:
    """A hash as one 64-bit number."""
    return value & HASH_MASK if isinstance(value, int) else int.from_bytes(value[-8:], "big")


def _event(raw: msgspec.Raw) -> Event | str:
    """The event, or why it is none."""
    try:
        return _EVENT.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        value = _ANY.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return "malformed"
    if isinstance(value, dict):
        return "malformed" if value.get("type") in _POSITIONS else "unknown-type"
    if not (isinstance(value, list) and value and isinstance(value[0], str)):
        return "malformed"
    if value[0] not in _POSITIONS:
        return "unknown-type"
    kind, names = _POSITIONS[value[0]]
    try:
        return msgspec.convert(dict(zip(names, value[1:], strict=False)) | {"type": value[0]}, kind)
    except msgspec.ValidationError:
        return "malformed"
