"""In which order an engine will evict blocks: what it holds now is not what it will hold when a request is scheduled.

vLLM takes blocks for new tokens from the head of a queue of free blocks. A request's blocks go to the queue's tail when
it ends, its last block first, and leave the queue while a request uses them. The queue is not announced, but follows
from what is: when blocks were stored, and when our requests that used them began and ended. What requests of other
gateways use again is not known. Source: ``KVCacheManager.free`` and ``FreeKVCacheBlockQueue`` in vllm/v1/core (0.32).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import count

from gateway.kvcache.index.block_table import LEADING, BlockChunk

WALK = 2_000
"""Runs of blocks that are looked at for those that go next: a millisecond, and more blocks than a queue of prompts
displaces at once."""

SPARE = 1_000
"""Runs of which nothing is held any more that may be in the order, beyond as many as there are others."""


class EvictionOrder:
    """Of one endpoint's GPU blocks. ``column``: its GPU column.

    A run is the blocks of one chunk that were last used at the same time, as bits.
    """

    def __init__(self, column: int) -> None:
        self._column = column
        self._numbers = count()
        # Number of a run -> its chunk, the least recently used first; chunk -> its runs by number.
        self._order: OrderedDict[int, BlockChunk] = OrderedDict()
        self._runs: dict[BlockChunk, dict[int, int]] = {}
        self._used: dict[BlockChunk, dict[object, int]] = {}
        self._next: tuple[int, Mapping[BlockChunk, int]] | None = None
        self._crowded = SPARE

    def stored(self, chunk: BlockChunk, bits: int) -> None:
        """These blocks were computed."""
        self._to_end(chunk, bits)
        self._next = None
        if len(self._order) > self._crowded:
            self._tidy()

    def use(self, by: object, blocks: Mapping[BlockChunk, int]) -> None:
        """The request ``by`` will use these blocks, or compute them."""
        used = self._used
        for chunk, bits in blocks.items():
            users = used.get(chunk)
            if users is None:
                used[chunk] = {by: bits}
            else:
                users[by] = bits
        self._next = None

    def free(self, by: object, blocks: dict[BlockChunk, int]) -> None:
        """The request has ended. ``blocks``: of its prompt, in order; the last of them go first."""
        used, runs, column = self._used, self._runs, self._column
        for chunk, bits in reversed(blocks.items()):
            users = used.get(chunk)
            if users is not None:
                users.pop(by, None)
                if not users:
                    del used[chunk]
            held = bits & (LEADING[len(chunk.keys)] if chunk.full >> column & 1 else chunk.held(column))
            if not held:
                continue
            numbers = runs.get(chunk)
            if numbers is not None and len(numbers) == 1:
                number, had = next(iter(numbers.items()))
                if had == held:  # as mostly: the chunk is used as a whole
                    self._order.move_to_end(number)
                    continue
            self._to_end(chunk, held)
        self._next = None

    def next_out(self, blocks: int) -> Mapping[BlockChunk, int]:
        """What will be evicted for so many new ``blocks`` (of the index's unit): chunk -> bits."""
        if self._next is None or self._next[0] != blocks:
            self._next = blocks, self._walk(blocks)
        return self._next[1]

    def _to_end(self, chunk: BlockChunk, bits: int) -> None:
        order, runs = self._order, self._runs.setdefault(chunk, {})
        for number, had in list(runs.items()):
            if had & bits:
                if left := had & ~bits:
                    runs[number] = left
                else:
                    del runs[number], order[number]
        number = next(self._numbers)
        runs[number] = bits
        order[number] = chunk

    def _walk(self, blocks: int) -> Mapping[BlockChunk, int]:
        column, used = self._column, self._used
        out: dict[BlockChunk, int] = {}
        empty = []
        for walked, (number, chunk) in enumerate(self._order.items()):
            if blocks <= 0 or walked == WALK:
                break
            held = chunk.held(column)
            bits = held & self._run(chunk, number, held)
            if not bits:
                empty.append(number)
                continue
            for users in used.get(chunk, {}).values():
                bits &= ~users
            if size := bits.bit_count():
                out[chunk] = out.get(chunk, 0) | (bits if size <= blocks else _highest(bits, blocks))
                blocks -= size
        for number in empty:
            self._drop(number)
        return out

    def _run(self, chunk: BlockChunk, number: int, held: int) -> int:
        """The run's bits. What an answer has added to a chunk since is in no run, and counts to the last one."""
        runs = self._runs[chunk]
        bits = runs[number]
        known = bits
        for others in runs.values():
            known |= others
        if bits.bit_length() == known.bit_length():
            bits |= held & ~known
        return bits

    def _drop(self, number: int) -> None:
        chunk = self._order.pop(number)
        runs = self._runs[chunk]
        del runs[number]
        if not runs:
            del self._runs[chunk]

    def _tidy(self) -> None:
        column = self._column
        for number in [number for number, chunk in self._order.items() if not chunk.held(column)]:
            self._drop(number)
        self._crowded = 2 * len(self._order) + SPARE


def _highest(bits: int, size: int) -> int:
    """The ``size`` highest of ``bits``, which are more: the blocks of a sequence's end."""
    for _ in range(bits.bit_count() - size):
        bits &= bits - 1
    return bits
