"""Engines' caches and their events, made up as vLLM 0.32 would announce them. Same seed, same scene."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from time import thread_time
from typing import Any, cast

import msgspec

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.load.ledger import Ledger
from gateway.framework import Clock, Endpoint, Engine
from gateway.framework.cost import CostModel
from gateway.framework.fleet import EngineMetrics, Model
from gateway.kvcache.events.decode import decode
from gateway.kvcache.index.block_events import BlockStored, Event
from gateway.kvcache.index.cache_index import Applied, CacheIndex
from gateway.kvcache.settings import CacheSettings

UNIT = 16
"""Tokens a block: vLLM's default on GPUs."""

VOCABULARY = 128_000
PROMPT = 1024
"""Blocks of a prompt of a filled index: 16,384 tokens."""

EVENTS = 64
"""In a batch: an engine that decodes 64 answers fills about 4 blocks a step; under prefill and eviction it is more."""


def endpoint(slot: int) -> Endpoint:
    """One that exists for the index only."""
    return Endpoint(
        slot=slot,
        name=f"engine-{slot}",
        model=Model("m"),
        engine=Engine(f"http://engine-{slot}", f"engine-{slot}"),
        load=Ledger(ManualClock()),
        cost=cast(CostModel, None),
        metrics=EngineMetrics(),
    )


class TimedIndex(CacheIndex):
    """``longest``: seconds of CPU that one message's events took at most: so long the event loop stood still."""

    longest = 0.0

    def apply(self, slot: int, events: Sequence[Event]) -> Applied:
        began = thread_time()
        applied = super().apply(slot, events)
        self.longest = max(self.longest, thread_time() - began)
        return applied


def index_of(endpoints: Sequence[Endpoint], max_blocks: int, clock: Clock | None = None) -> TimedIndex:
    """An index whose endpoints all have events."""
    index = TimedIndex(CacheSettings(max_blocks=max_blocks), "m", clock or ManualClock(), NULL_OBSERVER)
    for each in endpoints:
        index.add(each, events=True)
        index.set_complete(each.slot)
    return index


def tokens(chance: random.Random, blocks: int) -> array[int]:
    return array("I", chance.choices(range(VOCABULARY), k=blocks * UNIT))


def stored(hashes: list[int], parent: int | None, ids: Sequence[int]) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": list(ids),
        "block_size": UNIT,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def removed(*names: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU", "group_idx": 0}


def message(events: list[dict[str, Any]]) -> bytes:
    return msgspec.msgpack.encode([1_795_218_048.63, events, 0])


def decoding(chance: random.Random, blocks: int) -> tuple[list[bytes], list[int]]:
    """Messages of ``EVENTS`` one-block events, each of another answer that has filled a block; and all hashes."""
    messages: list[bytes] = []
    hashes: list[int] = []
    ends: list[int | None] = [None] * EVENTS
    while len(hashes) < blocks:
        events = []
        for answer, parent in enumerate(ends):
            name = chance.getrandbits(64)
            events.append(stored([name], parent, tokens(chance, 1)))
            ends[answer] = name
            hashes.append(name)
        messages.append(message(events))
    return messages, hashes


def prefilling(chance: random.Random, blocks: int, run: int = 64) -> tuple[list[bytes], list[int]]:
    """Messages of one event of ``run`` blocks, sixteen of them a prompt; and all hashes."""
    messages: list[bytes] = []
    hashes: list[int] = []
    parent: int | None = None
    while len(hashes) < blocks:
        if len(messages) % 16 == 0:
            parent = None
        names = [chance.getrandbits(64) for _ in range(run)]
        messages.append(message([stored(names, parent, tokens(chance, run))]))
        hashes += names
        parent = names[-1]
    return messages, hashes


def evictions(hashes: Sequence[int], run: int = 1) -> list[bytes]:
    """Messages of the end of ``EVENTS`` blocks, ``run`` in each event: vLLM has one."""
    return [
        message([removed(*hashes[first : first + run]) for first in range(start, start + EVENTS, run)])
        for start in range(0, len(hashes), EVENTS)
    ]


def ingest(index: CacheIndex, slot: int, messages: Sequence[bytes]) -> None:
    """From bytes to the index, as a stream does it but for the turns that it lets others have."""
    for each in messages:
        index.apply(slot, decode(each).events)
        index.report_counts(slot)


def fill(index: CacheIndex, chance: random.Random, endpoints: Sequence[Endpoint], blocks: int) -> None:
    """Each endpoint holds its share of ``blocks``, which nobody else has, in prompts of ``PROMPT`` blocks."""
    for each in endpoints:
        for _ in range(blocks // len(endpoints) // PROMPT):
            hold(index, each.slot, chance, tokens(chance, PROMPT))


def hold(index: CacheIndex, slot: int, chance: random.Random, ids: array[int]) -> list[int]:
    """The endpoint has a prompt's whole blocks from now on; their hashes."""
    hashes = [chance.getrandbits(64) for _ in range(len(ids) // UNIT)]
    event = BlockStored(
        block_hashes=list(hashes),
        token_ids=list(ids[: len(hashes) * UNIT]),
        block_size=UNIT,
        medium="GPU",
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    index.apply(slot, [event])
    return hashes
