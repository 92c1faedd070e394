"""In which order an engine will evict blocks: what it holds now is not what it will hold when a request is scheduled.

vLLM takes blocks for new tokens from the head of a queue of free blocks. A request's blocks go to the queue's tail when
it ends, its last block first, and leave the queue while a request uses them. The queue is not announced, but follows
from what is: when blocks were stored, and when our requests that used them began and ended. What requests of other
gateways use again is not known. Source: ``KVCacheManager.free`` and ``FreeKVCacheBlockQueue`` in vllm/v1/core (0.32).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from gateway.kvcache.index.block_table import LEADING, BlockChunk
from gateway.kvcache.index.predictions import Prediction, Users

WALK = 2_000
"""Runs of blocks that are looked at for those that go next: a millisecond, and more blocks than a queue of prompts
displaces at once."""


class EvictionOrder:
    """Of one endpoint's GPU blocks. ``column``: its GPU column.

    A run is the blocks of one chunk that were last used at the same time. ``used``: chunk -> the prediction of the
    request that uses blocks of it, or several where several do: a thousand may share a chunk, and end in any order.
    """

    def __init__(self, column: int) -> None:
        self.used: dict[BlockChunk, Users] = {}
        self._column = column
        self._numbers = count()
        # Number of a run -> its chunk, the least recently used first. Chunk -> the number of its run, which is all that
        # is held of it, or its runs, as bits by number.
        self._order: dict[int, BlockChunk] = {}
        self._runs: dict[BlockChunk, int | dict[int, int]] = {}
        self._next: tuple[int, Mapping[BlockChunk, int]] | None = None

    def __len__(self) -> int:
        """Runs."""
        return len(self._order)

    def stored(self, chunk: BlockChunk, bits: int) -> None:
        """These blocks were computed, and are held."""
        self._to_end(chunk, bits)
        self._next = None

    def gone(self, chunk: BlockChunk) -> None:
        """Nothing is held of the chunk any more."""
        runs = self._runs.pop(chunk, None)
        if isinstance(runs, int):
            del self._order[runs]
        elif runs is not None:
            for number in runs:
                del self._order[number]

    def use(self, by: Prediction) -> None:
        """The request of this prediction will use its blocks, or compute them."""
        used = self.used
        for chunk in by.blocks:
            users = used.setdefault(chunk, by)
            if users is by:
                continue
            if isinstance(users, dict):
                users[by] = None
            else:
                used[chunk] = {users: None, by: None}
        self._next = None

    def free(self, by: Prediction) -> None:
        """The request has ended. The last blocks of its prompt go first."""
        used, runs, order, column = self.used, self._runs, self._order, self._column
        for chunk, bits in reversed(by.blocks.items()):
            users = used[chunk]
            if users is by:
                del used[chunk]
            elif isinstance(users, dict):
                del users[by]
                if len(users) == 1:
                    used[chunk] = next(iter(users))
            held = LEADING[len(chunk.keys)] if chunk.full >> column & 1 else chunk.held(column)
            number = runs.get(chunk)
            if isinstance(number, int) and not held & ~bits:  # as mostly: the chunk is used as a whole
                del order[number]
                runs[chunk] = number = next(self._numbers)
                order[number] = chunk
            elif held & bits:
                self._to_end(chunk, held & bits)
        self._next = None

    def next_out(self, blocks: int) -> Mapping[BlockChunk, int]:
        """What will be evicted for so many new ``blocks`` (of the index's unit): chunk -> bits."""
        if self._next is None or self._next[0] != blocks:
            self._next = blocks, self._walk(blocks)
        return self._next[1]

    def _to_end(self, chunk: BlockChunk, bits: int) -> None:
        """``bits`` of the chunk, which are held, are its last run from now on."""
        order, before, number = self._order, self._runs.get(chunk), next(self._numbers)
        order[number] = chunk
        if before is None:
            self._runs[chunk] = number
            return
        runs = {before: chunk.held(self._column)} if isinstance(before, int) else before
        for other, had in list(runs.items()):
            if left := had & ~bits:
                runs[other] = left
            else:
                del runs[other], order[other]
        runs[number] = bits
        self._runs[chunk] = runs if len(runs) > 1 else number

    def _walk(self, blocks: int) -> Mapping[BlockChunk, int]:
        column, used = self._column, self.used
        out: dict[BlockChunk, int] = {}
        empty = []
        for walked, (number, chunk) in enumerate(self._order.items()):
            if blocks <= 0 or walked == WALK:
                break
            bits, runs = chunk.held(column), self._runs[chunk]
            if not isinstance(runs, int):
                bits &= _run(runs, number, bits)
                if not bits:
                    empty.append(number)
                    continue
            users = used.get(chunk)
            if users is not None:
                for one in users if isinstance(users, dict) else (users,):
                    bits &= ~one.blocks[chunk]
            if size := bits.bit_count():
                out[chunk] = out.get(chunk, 0) | (bits if size <= blocks else _highest(bits, blocks))
                blocks -= size
        for number in empty:
            runs = self._runs[self._order.pop(number)]
            assert isinstance(runs, dict)
            del runs[number]
        return out


def _run(runs: Mapping[int, int], number: int, held: int) -> int:
    """The bits of one of a chunk's ``runs``. What an answer has added to the chunk since is in no run: it counts to the
    last one."""
    bits = known = runs[number]
    for others in runs.values():
        known |= others
    if bits.bit_length() == known.bit_length():
        bits |= held & ~known
    return bits


def _highest(bits: int, size: int) -> int:
    """The ``size`` highest of ``bits``, which are more: the blocks of a sequence's end."""
    for _ in range(bits.bit_count() - size):
        bits &= bits - 1
    return bits
