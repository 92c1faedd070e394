"""Applies what one endpoint's engine says to the index, in slices: a busy thread stalls every stream that the gateway
relays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from msgspec.structs import replace

from gateway.framework import Observer
from gateway.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, decode
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.layers import Layer, tier_of

log = logging.getLogger("kvgate.kvcache")

SLICE = 256
"""Blocks applied between two turns of the loop: half a millisecond."""

MESSAGE_COST = 8
"""What a message costs beside its blocks, in blocks."""


class Applying:
    """Of one endpoint, while its events are followed.

    ``rank``: the engine's number for the rank that the endpoint is, None: not known. ``others``: events of another rank
    came, and were left out. ``below``: its engine has told of a tier below the GPU. ``over``: somebody else applies its
    events from now on, and has told the index so: nothing more may be applied here.
    """

    def __init__(self, slot: int, endpoint_name: str, rank: int | None, index: CacheIndex, observer: Observer) -> None:
        self.others = False
        self.below = False
        self.over = False
        self._slot = slot
        self._name = endpoint_name
        self._rank = rank
        self._index = index
        self._observer = observer
        self._work = 0

    async def take(self, payload: bytes) -> bool:
        """Apply one message. Whether it said that the GPU's cache is empty, or was before it said something else."""
        batch = decode(payload)
        self._work += MESSAGE_COST
        for reason, count in batch.refused.items():
            self._observer.kv_events(self._name, reason, count)
        if self._rank is not None and batch.rank not in (None, self._rank):
            self._other_rank(batch.rank)
            return False
        cleared = False
        some: list[Event] = []
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self._apply(some)
                await self.reset()
                cleared = True
                continue
            if event.medium != "GPU" and tier_of(event.medium) is not Layer.GPU:
                self.below = True
            for piece in (event,) if len(event.block_hashes) <= SLICE else _pieces(event):
                some.append(piece)
                self._work += len(piece.block_hashes)
                if self._work >= SLICE:
                    self._apply(some)
                    await self._rest()
        if some:
            self._apply(some)
        self._index.tell(self._slot)
        return cleared

    def _other_rank(self, rank: int | None) -> None:
        """They would be taken for blocks that this rank holds."""
        self._observer.kv_events(self._name, "other-rank", 1)
        if not self.others:
            self.others = True
            log.error("KV events of %s come from rank %s of its engine, not from %s", self._name, rank, self._rank)

    async def reset(self) -> None:
        """The GPU's cache is empty."""
        for _ in self._index.reset(self._slot):
            self._work += 1
            if self._work >= SLICE:
                await self._rest()
        await self.sweep()

    async def forget(self) -> None:
        """Nothing is known of the endpoint any more."""
        self._index.forget(self._slot)
        await self.sweep()

    async def sweep(self) -> None:
        """Clear what was forgotten, to its end: an engine that clears its cache again and again would leave more behind
        than is swept else."""
        while not self._index.sweep(SLICE):  # noqa: ASYNC110 -- nothing is waited for: others run between two slices
            await asyncio.sleep(0)

    def _apply(self, some: list[Event]) -> None:
        self._index.take(self._slot, some)
        some.clear()
        if self.over:
            # The index changed its unit and had us restarted: the rest is for our successor, in its order.
            raise asyncio.CancelledError

    async def _rest(self) -> None:
        """Let others run: it is time."""
        self._work = 0
        await asyncio.sleep(0)


def _pieces(event: BlockStored | BlockRemoved) -> Iterator[BlockStored | BlockRemoved]:
    """``event``, which has more blocks than a slice, in parts of one each."""
    if isinstance(event, BlockRemoved):
        for start in range(0, len(event.block_hashes), SLICE):
            yield replace(event, block_hashes=event.block_hashes[start : start + SLICE])
        return
    hashes, tokens, size, extra = event.block_hashes, event.token_ids, event.block_size, event.extra_keys
    if len(tokens) != len(hashes) * size:
        yield event  # it will be refused as a whole
        return
    for start in range(0, len(hashes), SLICE):
        yield replace(
            event,
            block_hashes=hashes[start : start + SLICE],
            parent_block_hash=hashes[start - 1] if start else event.parent_block_hash,
            token_ids=tokens[start * size : (start + SLICE) * size],
            extra_keys=extra[start : start + SLICE] if extra is not None else None,
        )
