"""KV in the host's memory beside an engine, as vLLM's OffloadingConnector keeps it.

The full blocks of prompts are stored as they are computed, and loaded before a request runs that lacks them on the GPU.
Either takes the link's time, a direction each, behind what was begun before; the batch goes on meanwhile. What is
generated is not stored (``offload_prompt_only``, vLLM's default), but with the next prompt that holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from simulator.virtual.link import Link, carry
from simulator.virtual.pool import Pool


class Offload:
    """``token``: seconds that the link takes for one token's KV."""

    def __init__(self, pool: Pool, token: float, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._out, self._in = Link(token), Link(token)
        self._stores: deque[tuple[float, list[int]]] = deque()
        self._storing: set[int] = set()

    @property
    def next(self) -> float:
        """When the next store is through; inf: there is none."""
        return self._stores[0][0] if self._stores else inf

    def store(self, ids: Sequence[int], now: float) -> None:
        """These were computed, or used again: those that are not on the host are on their way there."""
        new = [each for each in self._pool.lacking(ids) if each not in self._storing]
        if new:
            self._storing.update(new)
            self._stores.append((carry(len(new) * self._block_size, now, self._out), new))

    def settle(self, now: float) -> None:
        """What is stored by ``now`` can be found."""
        while self._stores and self._stores[0][0] <= now:
            ids = self._stores.popleft()[1]
            self._storing.difference_update(ids)
            self._pool.keep(ids)

    def load(self, ids: Sequence[int], now: float) -> float:
        """Bring these to the GPU. Returns when they are there."""
        self._pool.lacking(ids)
        return carry(len(ids) * self._block_size, now, self._in)
