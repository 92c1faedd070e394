"""Gives other tasks their turns while many blocks are applied: a busy loop stalls every stream that the gateway
relays."""

from __future__ import annotations

import asyncio

from gateway.kvcache.events.decode import SLICE
from gateway.kvcache.index.cache_index import CacheIndex


class Turns:
    """Counts one reader's work. ``work``: blocks since other tasks had their turn; 0 where it has just waited."""

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work = 0

    async def take(self, blocks: int) -> None:
        """Count work of so many ``blocks`` that is about to be done. Others have their turn before it if it would make
        more than ``SLICE``."""
        if self.work + blocks > SLICE:
            self.work = 0
            await asyncio.sleep(0)
        self.work += blocks


async def sweep(index: CacheIndex) -> None:
    """Sweep to the end: an engine that resets its cache again and again would leave more behind than is swept
    otherwise."""
    while not index.sweep(SLICE):  # noqa: ASYNC110 -- nothing is waited for: others run between two slices
        await asyncio.sleep(0)
