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

from gateway.kvcache.layers import Layer, tier_of

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of a message that is decoded: a prompt of a million tokens is 5 MB, and a step of an engine much less. Decoding
what is longer would hold up for seconds all that the gateway relays."""

HASH_MASK = (1 << 64) - 1
"""Old engines sent signed numbers; new ones the low 64 bits of a digest."""

Hash: TypeAlias = int | bytes


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True, gc=False):
    """Blocks that an engine holds from now on: a contiguous run behind ``parent_block_hash`` (None: from the start).

    ``block_size``: tokens; 0, and no ``token_ids``, where only a tier is told. ``extra_keys``: what else than tokens is
    in each block's hash: the adapter's name, media, the cache salt, a digest of embeddings.
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
    """Copies of blocks that an engine gave up."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: Any = None
    ownership: Any = None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True, gc=False):
    """The engine's GPU cache was reset."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(slots=True)
class Batch:
    """One message. ``rank``: data-parallel rank, among those of all nodes, if told. ``refused``: what was not
    understood, by the reason's word: ``malformed-batch``, ``malformed`` and ``unknown-type`` were left out, an
    ``unknown-key`` was read over.
    """

    events: list[Event] = field(default_factory=list)
    rank: int | None = None
    refused: Counter[str] = field(default_factory=Counter)


class _PlainBatch(msgspec.Struct, array_like=True, gc=False):
    """As vLLM 0.32 sends it, and every event understood."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class _ArrayBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class _MapBatch(msgspec.Struct):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_PLAIN = msgspec.msgpack.Decoder(_PlainBatch)
_BATCHES = (msgspec.msgpack.Decoder(_ArrayBatch), msgspec.msgpack.Decoder(_MapBatch))
_EVENT: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_ANY = msgspec.msgpack.Decoder()

_NOTHING: Counter[str] = Counter()

_UNREADABLE = (ValueError, RecursionError, MemoryError)
"""What garbage makes a decoder raise: msgspec's errors and bad UTF-8 are ValueErrors; a length of 2**32 is believed."""

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}
"""The fields of each are in the order of the positional form; trailing ones may be absent there."""


def decode(payload: bytes) -> Batch:
    """The events of one message. Never raises: one that is unreadable, or longer than ``MAX_MESSAGE``, is a batch with
    ``malformed-batch`` refused."""
    if len(payload) > MAX_MESSAGE:
        return Batch(refused=Counter({"malformed-batch": 1}))
    try:
        plain = _PLAIN.decode(payload)
    except _UNREADABLE:
        return _decode_one_by_one(payload)
    return Batch(plain.events, plain.data_parallel_rank, _NOTHING)


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


def is_named(event: BlockStored) -> bool:
    """Whether keys are made of it. On other tiers salts and adapters may be missing, and tokens prove nothing."""
    return bool(event.token_ids) and (event.medium == "GPU" or tier_of(event.medium) is Layer.GPU)


def is_tail(event: BlockStored, block_size: int) -> bool:
    """Whether it tells of the end of a prompt within a block. ``block_size``: the engine's, 0 if not known.

    Hybrid models keep one for the prompt's last whole unit of hashing, under a hash of its own behind one that is never
    announced. Source: ``FullAttentionManager._cache_partial_tail_block`` in vLLM 0.32.
    """
    size = event.block_size
    return len(event.block_hashes) == 1 and 0 < size < block_size and not block_size % size


def _decode_one_by_one(payload: bytes) -> Batch:
    """What is older, newer or broken takes no other event of its message with it."""
    for decoder in _BATCHES:
        try:
            raw = decoder.decode(payload)
        except _UNREADABLE:
            continue
        batch = Batch(rank=raw.data_parallel_rank)
        for one in raw.events:
            try:
                batch.events.append(_EVENT.decode(one))
            except _UNREADABLE:
                _look_closer(one, batch)
        return batch
    return Batch(refused=Counter({"malformed-batch": 1}))


def _look_closer(raw: msgspec.Raw, batch: Batch) -> None:
    """An event that is not just a map of vLLM 0.32: newer, older, or none."""
    try:
        value = _ANY.decode(raw)
    except _UNREADABLE:
        value = None
    tag = value.get("type") if isinstance(value, dict) else value[0] if isinstance(value, list) and value else None
    if not isinstance(tag, str):
        batch.refused["malformed"] += 1
        return
    kind = _KINDS.get(tag)
    if kind is None:
        batch.refused["unknown-type"] += 1
        return
    names = kind.__struct_fields__
    if isinstance(value, dict):
        known = {name: value[name] for name in names if name in value}
        newer = len(value) > len(known) + 1
    else:
        known = dict(zip(names, value[1:], strict=False))
        newer = len(value) > len(names) + 1
    try:
        batch.events.append(msgspec.convert(known | {"type": tag}, kind))
    except _UNREADABLE:
        batch.refused["malformed"] += 1
        return
    if newer:
        batch.refused["unknown-key"] += 1
