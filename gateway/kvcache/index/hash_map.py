"""Maps the hashes of one engine to block locations. New entries are in a dict, old ones in a compact hash map.

An entry of the dict is quick and takes 130 bytes. When the index is large, or the dict, since it grows in one go, the
oldest are packed: into records of 16 bytes, in buckets of some 32 that are searched as bytes, so that one takes 21
bytes and 0.3 us more to look up. A bucket keeps the order in which its hashes came: the fronts of all buckets are,
nearly, the oldest. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

Locations: TypeAlias = int | tuple[int, ...]
"""Where a block is in the block table: one location, or a tuple where the engine's block has several keys, or none. Not
an object: there are millions."""

BUCKET = 32
"""Hashes of a bucket on average: more are slower to search, fewer cost more memory for the buckets."""

CROWD = 16 * BUCKET
"""Hashes of a bucket at most. Hashes are as good as random; if an engine's are not, the rest stays in the dict."""

FRONT = 16
"""One in so many of a bucket is its front. Hashes of one prompt are in as many buckets, and better leave together."""


@dataclass(frozen=True, slots=True)
class Packing:
    """When hashes are packed.

    ``above``: blocks of an index up to which none are packed: 260 MB, in which nothing becomes slower. ``recent``: one
    in so many of an endpoint's hashes stays in the dict then, 8 of the 60 bytes that a block may cost; ``least`` hashes
    always do. ``most``: hashes of an endpoint that stay in the dict in any case: a dict of twice as many takes 10 ms to
    grow. ``batch``: packed at once, at least: finding the oldest of a dict takes longer than to pack a few.
    """

    above: int = 2_000_000
    recent: int = 16
    least: int = 1024
    most: int = 80_000
    batch: int = 256


PACKING = Packing()

RECORD = struct.Struct("<QQ")
RECORD_SIZE = RECORD.size
HASH_SIZE = RECORD_SIZE // 2
HASH = struct.Struct("<Q").pack
LOCATION = struct.Struct("<Q").unpack_from
SHIFT = 48
"""In a record, the location has the bits below. The bits above are 0, or one more than the number of consecutive
locations that begin here, for blocks that have not just one."""

SINGLE = 1 << SHIFT


class CompactHashMap:
    """Old hashes -> locations. Grows by one bucket at a time (linear hashing), so that no step takes long. ``size``:
    entries."""

    def __init__(self) -> None:
        self.size = 0
        self._front = 0
        self._begin()

    def __len__(self) -> int:
        return self.size

    def __contains__(self, block_hash: object) -> bool:
        return self.get(block_hash) is not None

    def get(self, block_hash: object) -> Locations | None:
        """``block_hash``: anything; what is no hash is not there."""
        bucket, at = self._find(block_hash)
        if at < 0:
            return None
        (value,) = LOCATION(bucket, at + HASH_SIZE)
        return value if value < SINGLE else _decode(value)

    def pop(self, block_hash: object) -> Locations | None:
        bucket, at = self._find(block_hash)
        if at < 0:
            return None
        (value,) = LOCATION(bucket, at + HASH_SIZE)
        del bucket[at : at + RECORD_SIZE]
        self.size -= 1
        if not self.size:
            self._begin()
        return value if value < SINGLE else _decode(value)

    def add(self, items: Sequence[tuple[int, Locations]]) -> list[tuple[int, Locations]]:
        """Add hashes that are not there; returns the entries that cannot be packed."""
        for _ in range((self.size + len(items)) // BUCKET - len(self._buckets)):
            self._split()
        buckets, wide, half, pack = self._buckets, self._wide, self._half, RECORD.pack
        count, most = len(buckets), CROWD * RECORD_SIZE
        left = []
        for item in items:
            block_hash, locations = item
            at = block_hash & wide
            if at >= count:
                at -= half
            bucket = buckets[at]
            try:
                if len(bucket) < most:
                    bucket += pack(block_hash, locations if type(locations) is int else _encode(locations))
                    continue
            except struct.error:  # not consecutive, or not a hash of 64 bits
                pass
            left.append(item)
        self.size += len(items) - len(left)
        return left

    def pop_oldest(self, count: int) -> list[tuple[int, Locations]]:
        """Take out ``count`` entries, or all: the fronts of one bucket after the other."""
        found: list[tuple[int, Locations]] = []
        while self.size and len(found) < count:
            self._front = (self._front + 1) % len(self._buckets)
            bucket = self._buckets[self._front]
            if not bucket:
                continue
            several = min(len(bucket) // RECORD_SIZE // FRONT + 1, count - len(found))
            front = bucket[: several * RECORD_SIZE]
            found += [(block_hash, _decode(value)) for block_hash, value in RECORD.iter_unpack(front)]
            del bucket[: several * RECORD_SIZE]
            self.size -= several
        if not self.size:
            self._begin()
        return found

    def drain(self) -> Iterator[tuple[int, Locations]]:
        """Take out all, one by one and in no order: to free all at once would take long. Nothing else may be done
        meanwhile or afterwards, except to drain what is left, if this is closed."""
        buckets = self._buckets
        while buckets:
            bucket = buckets[-1]
            while bucket:
                block_hash, value = RECORD.unpack(bucket[-RECORD_SIZE:])
                del bucket[-RECORD_SIZE:]
                yield block_hash, _decode(value)
            buckets.pop()

    def _find(self, block_hash: Any) -> tuple[bytearray, int]:
        """The bucket, and where the record begins in it; -1: there is none."""
        buckets = self._buckets
        try:
            key = HASH(block_hash)
        except struct.error:
            return buckets[0], -1
        at = block_hash & self._wide
        if at >= len(buckets):
            at -= self._half
        bucket = buckets[at]
        found = bucket.find(key)
        while found & RECORD_SIZE - 1 and found > 0:  # not at the start of a record
            found = bucket.find(key, found + 1)
        return bucket, found

    def _begin(self) -> None:
        # A hash's lowest bits are its bucket's number: one bit more where the bucket was split already.
        self._buckets = [bytearray()]
        self._half = self._wide = 1
        self._front = 0

    def _split(self) -> None:
        """Add a bucket: the next in turn gives up the hashes whose next bit is set."""
        buckets, half = self._buckets, self._half
        if len(buckets) == 2 * half:
            half = self._half = 2 * half
            self._wide = 2 * half - 1
        at = len(buckets) - half
        byte, bit = divmod(half.bit_length() - 1, 8)
        bucket = bytes(buckets[at])
        records = struct.unpack(f"{RECORD_SIZE}s" * (len(bucket) // RECORD_SIZE), bucket)
        mask = 1 << bit
        buckets[at] = bytearray(b"".join([record for record in records if not record[byte] & mask]))
        buckets.append(bytearray(b"".join([record for record in records if record[byte] & mask])))


class HashMap:
    """Engine hash -> locations. ``recent`` may be read and written, but not with a hash that ``packed`` has."""

    __slots__ = ("_largest_size", "_unpackable", "packed", "recent")

    def __init__(self) -> None:
        self.recent: dict[int, Locations] = {}
        self.packed = CompactHashMap()
        self._unpackable = 0  # recent hashes that cannot be packed, at most
        self._largest_size = 0  # of the dict, ever: a dict does not shrink by itself

    def __len__(self) -> int:
        return len(self.recent) + self.packed.size

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self.recent or block_hash in self.packed

    def __getitem__(self, block_hash: int) -> Locations:
        if (locations := self.get(block_hash)) is None:
            raise KeyError(block_hash)
        return locations

    def get(self, block_hash: int) -> Locations | None:
        locations = self.recent.get(block_hash)
        return locations if locations is not None else self.packed.get(block_hash)

    def pop(self, block_hash: int) -> Locations | None:
        locations = self.recent.pop(block_hash, None)
        return locations if locations is not None else self.packed.pop(block_hash)

    def pop_all(self) -> HashMap:
        """Take out all."""
        all_of_them = HashMap()
        all_of_them.recent, self.recent = self.recent, all_of_them.recent
        all_of_them.packed, self.packed = self.packed, all_of_them.packed
        self._unpackable = self._largest_size = 0
        return all_of_them

    def pop_oldest(self, count: int) -> list[tuple[int, Locations]]:
        """Take out ``count`` entries, the first that came, or all."""
        found = self.packed.pop_oldest(count)
        if len(found) < count:
            found += self._pop_recent(count - len(found))
        return found

    def drain(self) -> Iterator[tuple[int, Locations]]:
        """As ``CompactHashMap.drain``."""
        yield from self.packed.drain()
        while self.recent:
            yield self.recent.popitem()

    def pack(self, packing: Packing, most: int, *, large: bool = True) -> bool:
        """Pack the oldest recent hashes, ``most`` of them at most. False if there are not enough of them. ``large``:
        the index is; else only those beyond ``packing.most`` are packed."""
        keep = max(packing.least, min(packing.most, len(self) // packing.recent)) if large else packing.most
        self._unpackable = min(self._unpackable, len(self.recent))
        excess = len(self.recent) - self._unpackable - keep
        if excess < packing.batch:
            return False
        self._largest_size = max(self._largest_size, len(self.recent))
        left = self.packed.add(self._pop_recent(min(excess, most)))
        self._unpackable += len(left)
        self.recent.update(left)
        if len(self.recent) < self._largest_size // 2:
            self.recent, self._largest_size = dict(self.recent), 0
        return True

    def _pop_recent(self, count: int) -> list[tuple[int, Locations]]:
        recent = self.recent
        found = list(islice(recent.items(), count))
        for block_hash, _ in found:
            del recent[block_hash]
        return found


def as_tuple(locations: Locations) -> tuple[int, ...]:
    return (locations,) if isinstance(locations, int) else locations


def _encode(locations: Locations) -> int:
    """As in a record. Raises struct.error if the locations are not consecutive."""
    assert isinstance(locations, tuple)
    first = locations[0] if locations else 0
    if locations != tuple(range(first, first + len(locations))):
        raise struct.error
    return (len(locations) + 1) << SHIFT | first


def _decode(value: int) -> Locations:
    if value < SINGLE:
        return value
    first = value & SINGLE - 1
    return tuple(range(first, first + (value >> SHIFT) - 1))
