"""Decodes KV event messages, in every encoding that vLLM has used, to typed events. Pure.

Rules: one bad event never spoils its batch; what is not understood is counted by a label and left out. Batches and
events were positional arrays before vLLM 0.24, and events are maps since; for a while batches were maps too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from gateway.kvcache.index.block_events import AllBlocksCleared, BlockRemoved, BlockStored, Event

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of a message that is decoded: a prompt of a million tokens is 5 MB, and a step of an engine much less. Decoding
a longer one would hold up for seconds all that the gateway relays."""

SLICE = 256
"""Blocks applied between two turns of the loop: half a millisecond."""


@dataclass(slots=True)
class Batch:
    """One message. ``rank``: data-parallel rank, among those of all nodes; None: not reported. ``refused``: how often
    what was not understood, by label: ``malformed-batch``, ``malformed`` and ``unknown-type`` were left out, an
    ``unknown-key`` was ignored."""

    events: list[Event] = field(default_factory=list)
    rank: int | None = None
    refused: Counter[str] = field(default_factory=Counter)


class _PlainBatch(msgspec.Struct, array_like=True, gc=False):
    """As vLLM 0.32 sends it, if every event is understood."""

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
"""The fields of each are in the order of the positional form; trailing ones may be missing there."""


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


def _decode_one_by_one(payload: bytes) -> Batch:
    """An event that is older, newer or broken takes no other event of its message with it."""
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
                _decode_other(one, batch)
        return batch
    return Batch(refused=Counter({"malformed-batch": 1}))


def _decode_other(raw: msgspec.Raw, batch: Batch) -> None:
    """An event that is no map of vLLM 0.32: newer, older, or broken."""
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


def slices(events: Sequence[Event]) -> Iterator[tuple[list[Event], int]]:
    """(events in order, their blocks) of at most ``SLICE`` blocks each; a reset stands alone."""
    some: list[Event] = []
    count = 0
    for event in events:
        if isinstance(event, AllBlocksCleared):
            if some:
                yield some, count
            yield [event], 0
            some, count = [], 0
            continue
        for piece in (event,) if len(event.block_hashes) <= SLICE else _pieces(event):
            size = len(piece.block_hashes)
            if some and count + size > SLICE:
                yield some, count
                some, count = [], 0
            some.append(piece)
            count += size
    if some:
        yield some, count


def _pieces(event: BlockStored | BlockRemoved) -> Iterator[BlockStored | BlockRemoved]:
    """``event``, which has more blocks than a slice, in parts of one slice each."""
    if isinstance(event, BlockRemoved):
        for start in range(0, len(event.block_hashes), SLICE):
            yield replace(event, block_hashes=event.block_hashes[start : start + SLICE])
        return
    hashes, tokens, size, extra = event.block_hashes, event.token_ids, event.block_size, event.extra_keys
    if len(tokens) != len(hashes) * size:
        yield event  # the index refuses it as a whole
        return
    for start in range(0, len(hashes), SLICE):
        yield replace(
            event,
            block_hashes=hashes[start : start + SLICE],
            parent_block_hash=hashes[start - 1] if start else event.parent_block_hash,
            token_ids=tokens[start * size : (start + SLICE) * size],
            extra_keys=extra[start : start + SLICE] if extra is not None else None,
        )
