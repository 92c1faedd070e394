"""Block table: all block keys of a model, and which endpoint holds which.

A *chunk* is a run of up to 64 consecutive block keys. A *column* is a small number that stands for one kind of
knowledge of one endpoint (its GPU tier, its CPU tier, its predictions, ...). Each chunk has a bitmap of the columns
that hold all of it, and a 64-bit mask for each column that holds a part. So a prompt is compared chunk by chunk, a
hundred of them for 100,000 tokens, and the answer is exact, holes included.

A key stands for a block's tokens and everything before them, so that it is in the table once: as the first of a chunk,
or behind its predecessor in the same chunk. Synchronous; knows nothing of engines.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

CHUNK_BITS = 6
CHUNK_SIZE = 1 << CHUNK_BITS
"""Blocks of a chunk at most: what a column holds of one is an integer of 64 bits."""

OFFSET_MASK = CHUNK_SIZE - 1
"""A block's *location* is one number: its chunk's number, and in the lowest bits its offset there."""

LEADING = tuple((1 << count) - 1 for count in range(CHUNK_SIZE + 1))
"""LEADING[n]: bits of the first n blocks."""


class BlockChunk:
    """Consecutive block keys.

    ``number``: of the chunk, in locations. ``full``: bitmap of the columns that hold all of it. ``part``: column ->
    bits, for the columns that hold some of it; None if there are none. ``used``: when a request last led through it, in
    the index's count of placements.
    """

    __slots__ = ("full", "keys", "number", "part", "used")

    def __init__(self, number: int, keys: array[int]) -> None:
        self.number = number
        self.keys = keys
        self.full = 0
        self.part: dict[int, int] | None = None
        self.used = 0

    def held(self, column: int) -> int:
        """Bits of the blocks that ``column`` holds."""
        if self.full >> column & 1:
            return LEADING[len(self.keys)]
        return self.part.get(column, 0) if self.part else 0

    def common_prefix(self, keys: Sequence[int], at: int, offset: int = 0) -> int:
        """How many of ``keys`` from ``at`` on equal the chunk's keys from ``offset`` on.

        Equal keys have equal predecessors: if the last pair is equal, all are; else the end is found by binary search.
        """
        own = self.keys
        high = min(len(own) - offset, len(keys) - at)
        if high <= 0 or own[offset + high - 1] == keys[at + high - 1]:
            return max(high, 0)
        low = 0
        high -= 1
        while low < high:
            middle = (low + high + 1) // 2
            if own[offset + middle - 1] == keys[at + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low


class BlockTable:
    """All chunks of a model. ``size``: keys in them. ``heads``: first key -> chunk."""

    def __init__(self) -> None:
        self.size = 0
        self.heads: dict[int, BlockChunk] = {}
        self.chunks: list[BlockChunk | None] = []
        self._free: list[int] = []

    def chunk_at(self, location: int) -> BlockChunk:
        """The chunk of a location that some column holds."""
        chunk = self.chunks[location >> CHUNK_BITS]
        assert chunk is not None
        return chunk

    def key_at(self, location: int) -> int:
        return self.chunk_at(location).keys[location & OFFSET_MASK]

    def path(self, keys: Sequence[int]) -> list[tuple[BlockChunk, int]]:
        """(chunk, number of its leading blocks) along a prompt, as far as its keys are in the table."""
        heads, position, count = self.heads, 0, len(keys)
        path: list[tuple[BlockChunk, int]] = []
        while position < count:
            chunk = heads.get(keys[position])
            if chunk is None:
                break
            end = position + len(chunk.keys)
            if end > count or chunk.keys[-1] != keys[end - 1]:
                end = position + chunk.common_prefix(keys, position)
            path.append((chunk, end - position))
            position = end
        return path

    def is_new(self, behind: int, keys: Sequence[int]) -> bool:
        """Whether no column holds any key of a run behind the location ``behind``; -1: at a prompt's start.

        The first key would follow ``behind`` or be a head, as the others would: what is neither has no predecessor
        here.
        """
        if behind >= 0:
            after = self.chunk_at(behind).keys[(behind & OFFSET_MASK) + 1 :][:1]
            if after and keys and after[0] == keys[0]:
                return False
        return self.heads.keys().isdisjoint(keys)

    def insert(self, behind: int, keys: Sequence[int], column: int) -> list[tuple[BlockChunk, int, int]]:
        """Add the keys of a run; returns (chunk, offset, count) of where they are. No column holds more than before.

        ``behind``: location of the block before the run; -1: it begins a prompt. ``column``: the caller must mark all
        of them for it: a chunk that no column holds would stay for ever. New keys are added to a chunk that it alone
        holds. Else they begin a chunk: what many hold stays whole, so that it is found for all of them at once.
        """
        heads, chunks, found, bit = self.heads, self.chunks, [], 1 << column
        position, count = 0, len(keys)
        last: BlockChunk | None = None
        if behind >= 0:
            last = chunks[behind >> CHUNK_BITS]
            assert last is not None
            offset = (behind & OFFSET_MASK) + 1
            position = last.common_prefix(keys, 0, offset)
            if position:
                found.append((last, offset, position))
            if offset + position < len(last.keys):
                last = None
        while position < count:
            chunk = heads.get(keys[position])
            if chunk is not None:
                own = chunk.keys
                shared = len(own)
                end = position + shared
                if end <= count and own[-1] == keys[end - 1]:  # as mostly: all of it
                    last = chunk
                else:
                    shared = chunk.common_prefix(keys, position)
                    last = chunk if shared == len(own) else None
                found.append((chunk, 0, shared))
                position += shared
                continue
            # New keys, up to the next that is known; into what is left of the chunk before, or a new one.
            room = CHUNK_SIZE - len(last.keys) if last is not None and last.full == bit and last.part is None else 0
            run = array("Q", keys[position : position + (room or CHUNK_SIZE)])
            if len(run) > 1 and not heads.keys().isdisjoint(run):
                end = 1
                while run[end] not in heads:
                    end += 1
                del run[end:]
            if room:
                assert last is not None
                size = len(last.keys)
                found.append((last, size, len(run)))
                last.keys.extend(run)
                self.size += len(run)
                last.full, last.part = 0, {column: LEADING[size]}  # until it is marked
            else:
                if self._free:
                    number = self._free.pop()
                else:
                    number = len(chunks)
                    chunks.append(None)
                chunks[number] = heads[run[0]] = last = BlockChunk(number, run)
                self.size += len(run)
                found.append((last, 0, len(run)))
            position += len(run)
        return found

    def mark(self, chunk: BlockChunk, column: int, bits: int) -> int:
        """``column`` holds ``bits`` from now on; returns those that it held before."""
        if chunk.full >> column & 1:
            return bits
        part = chunk.part
        had = part.get(column, 0) if part else 0
        now = had | bits
        if now == LEADING[len(chunk.keys)]:
            chunk.full |= 1 << column
            if part and had:
                del part[column]
                if not part:
                    chunk.part = None
        elif part is None:
            chunk.part = {column: now}
        else:
            part[column] = now
        return had & bits

    def unmark(self, chunk: BlockChunk, column: int, bits: int) -> bool:
        """``column`` holds ``bits`` no longer; returns whether it holds others of the chunk. Keys at the end that no
        column holds are dropped, and so is an empty chunk."""
        bit = 1 << column
        full, part, size = chunk.full, chunk.part, len(chunk.keys)
        if full & bit:
            if full == bit and part is None and bits == 1 << size - 1 and size > 1:
                # The only holder gives up the last block: the usual eviction.
                chunk.keys.pop()
                self.size -= 1
                return True
            chunk.full = full = full ^ bit
            if left := LEADING[size] & ~bits:
                if part is None:
                    part = chunk.part = {}
                part[column] = left
        else:
            had = part.get(column, 0) if part else 0
            if part is None or not had & bits:
                return had > 0
            if left := had & ~bits:
                part[column] = left
            else:
                del part[column]
                if not part:
                    part = chunk.part = None
        if full:
            return left > 0
        if part is None:  # no column holds anything of it
            self.size -= size
            del self.heads[chunk.keys[0]]
            self.chunks[chunk.number] = None
            self._free.append(chunk.number)
            chunk.keys = array("Q")
            return False
        top = max(part.values()).bit_length()
        if top < size:  # no column holds its end
            del chunk.keys[top:]
            self.size -= size - top
            for column in [column for column, bits in part.items() if bits == LEADING[top]]:
                chunk.full |= 1 << column
                del part[column]
            if not part:
                chunk.part = None
        return left > 0

    def unmark_all(self, chunk: BlockChunk, column: int) -> None:
        """``column`` holds nothing of the chunk any more."""
        if held := chunk.held(column):
            self.unmark(chunk, column, held)


def columns(mask: int) -> Iterator[int]:
    """The columns whose bits are set, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit
