"""An engine's hashes, each with where its block is on the shelf, in two ages.

A young hash is in a dictionary: quick, and 130 bytes. When the index is large, the oldest are packed: 16 bytes each, in
buckets of some 32 that are searched as bytes, so that one costs 21 bytes and 0.3 us more to look up. A packed bucket
keeps the order in which its hashes came: what is at the front of all buckets is, nearly, what came first. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

Named: TypeAlias = int | tuple[int, ...]
"""A block's location, or its locations where the engine's blocks are larger than the unit, or none. Not an object:
there are millions."""

BUCKET = 32
"""Hashes of a bucket on average: more are slower to search, fewer cost more memory for themselves."""

CROWD = 16 * BUCKET
"""Hashes of a bucket at most: hashes are as good as random, but if an engine's are not, they stay young."""

FRONT = 16
"""One in so many of a bucket is its front. Hashes of one prompt are in as many buckets, and better leave together."""


@dataclass(frozen=True, slots=True)
class Ages:
    """When hashes are old.

    ``above``: blocks of an index, below which all are young: 260 MB, in which nothing becomes slower. ``young``: one in
    so many of an endpoint's stays young, 8 of the 60 bytes that a block may cost; and ``least`` do anyway. ``chunk``:
    so many at least are packed at once; to find the oldest of a dictionary takes longer than to pack a few.
    """

    above: int = 2_000_000
    young: int = 16
    least: int = 1024
    chunk: int = 256


AGES = Ages()

RECORD = struct.Struct("<QQ")
SIZE = RECORD.size
HALF = SIZE // 2
HASH = struct.Struct("<Q").pack
LOCATION = struct.Struct("<Q").unpack_from
SHIFT = 48
"""In a record, a location has the lowest bits. Above it is 0, or one more than how many locations in a row begin here,
for blocks that have not just one."""

SINGLE = 1 << SHIFT


class Packed:
    """Old hashes. A table that grows by one bucket at a time (linear hashing), so that no step takes long. ``size``:
    how many there are."""

    def __init__(self) -> None:
        self.size = 0
        self._front = 0
        self._begin()

    def __len__(self) -> int:
        return self.size

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None

    def get(self, name: object) -> Named | None:
        """``name``: anything; what is no hash is not there."""
        bucket, at = self._find(name)
        if at < 0:
            return None
        (value,) = LOCATION(bucket, at + HALF)
        return value if value < SINGLE else _unpacked(value)

    def pop(self, name: object) -> Named | None:
        bucket, at = self._find(name)
        if at < 0:
            return None
        (value,) = LOCATION(bucket, at + HALF)
        del bucket[at : at + SIZE]
        self.size -= 1
        if not self.size:
            self._begin()
        return value if value < SINGLE else _unpacked(value)

    def add(self, items: Sequence[tuple[int, Named]]) -> list[tuple[int, Named]]:
        """Pack hashes that are not there yet; returns those that cannot be."""
        for _ in range((self.size + len(items)) // BUCKET - len(self._buckets)):
            self._split()
        buckets, wide, half, pack = self._buckets, self._wide, self._half, RECORD.pack
        count, most = len(buckets), CROWD * SIZE
        left = []
        for item in items:
            name, named = item
            at = name & wide
            if at >= count:
                at -= half
            bucket = buckets[at]
            try:
                if len(bucket) < most:
                    bucket += pack(name, named if type(named) is int else _packed(named))
                    continue
            except struct.error:  # no row, or no hash of 64 bits
                pass
            left.append(item)
        self.size += len(items) - len(left)
        return left

    def pop_oldest(self, count: int) -> list[tuple[int, Named]]:
        """Take out ``count`` hashes, or all: of bucket after bucket the first few."""
        found: list[tuple[int, Named]] = []
        while self.size and len(found) < count:
            self._front = (self._front + 1) % len(self._buckets)
            bucket = self._buckets[self._front]
            if not bucket:
                continue
            several = min(len(bucket) // SIZE // FRONT + 1, count - len(found))
            front = bucket[: several * SIZE]
            found += [(name, _unpacked(value)) for name, value in RECORD.iter_unpack(front)]
            del bucket[: several * SIZE]
            self.size -= several
        if not self.size:
            self._begin()
        return found

    def items(self) -> Iterator[tuple[int, Named]]:
        """In no order. Nothing may change meanwhile."""
        for bucket in self._buckets:
            for name, value in RECORD.iter_unpack(bucket):
                yield name, _unpacked(value)

    def _find(self, name: Any) -> tuple[bytearray, int]:
        """The bucket, and where the record begins in it: -1 if there is none."""
        buckets = self._buckets
        try:
            key = HASH(name)
        except struct.error:
            return buckets[0], -1
        at = name & self._wide
        if at >= len(buckets):
            at -= self._half
        bucket = buckets[at]
        found = bucket.find(key)
        while found & SIZE - 1 and found > 0:  # within a record
            found = bucket.find(key, found + 1)
        return bucket, found

    def _begin(self) -> None:
        # A hash's bucket is what its lowest bits say, one bit more for those below the last that was split.
        self._buckets = [bytearray()]
        self._half = self._wide = 1
        self._front = 0

    def _split(self) -> None:
        """One bucket more: the next in turn gives up those whose next bit is set."""
        buckets, half = self._buckets, self._half
        if len(buckets) == 2 * half:
            half = self._half = 2 * half
            self._wide = 2 * half - 1
        at = len(buckets) - half
        byte, bit = divmod(half.bit_length() - 1, 8)
        bucket = bytes(buckets[at])
        records = struct.unpack(f"{SIZE}s" * (len(bucket) // SIZE), bucket)
        mask = 1 << bit
        buckets[at] = bytearray(b"".join([record for record in records if not record[byte] & mask]))
        buckets.append(bytearray(b"".join([record for record in records if record[byte] & mask])))


class Names:
    """All hashes of an engine. ``young`` may be read and written, but a hash that is ``old`` may not be set there."""

    __slots__ = ("_largest", "_odd", "old", "young")

    def __init__(self) -> None:
        self.young: dict[int, Named] = {}
        self.old = Packed()
        self._odd = 0  # young ones that cannot be packed, at most
        self._largest = 0  # that the dictionary was: it does not become smaller by itself

    def __len__(self) -> int:
        return len(self.young) + self.old.size

    def __contains__(self, name: int) -> bool:
        return name in self.young or name in self.old

    def __getitem__(self, name: int) -> Named:
        if (named := self.get(name)) is None:
            raise KeyError(name)
        return named

    def get(self, name: int) -> Named | None:
        named = self.young.get(name)
        return named if named is not None else self.old.get(name)

    def pop(self, name: int) -> Named | None:
        named = self.young.pop(name, None)
        return named if named is not None else self.old.pop(name)

    def pop_all(self) -> Names:
        """Take out all."""
        all_of_them = Names()
        all_of_them.young, self.young = self.young, all_of_them.young
        all_of_them.old, self.old = self.old, all_of_them.old
        self._odd = self._largest = 0
        return all_of_them

    def pop_oldest(self, count: int) -> list[tuple[int, Named]]:
        """Take out ``count`` hashes, the first that came, or all."""
        found = self.old.pop_oldest(count)
        if len(found) < count:
            found += self._pop_young(count - len(found))
        return found

    def items(self) -> Iterator[tuple[int, Named]]:
        """The old ones in no order. Nothing may change meanwhile."""
        yield from self.old.items()
        yield from self.young.items()

    def values(self) -> Iterator[Named]:
        return (named for _, named in self.items())

    def age(self, ages: Ages, most: int) -> bool:
        """Pack the oldest of what is young, ``most`` hashes at most. False if there are not enough of them."""
        self._odd = min(self._odd, len(self.young))
        excess = len(self.young) - self._odd - max(ages.least, len(self) // ages.young)
        if excess < ages.chunk:
            return False
        self._largest = max(self._largest, len(self.young))
        left = self.old.add(self._pop_young(min(excess, most)))
        self._odd += len(left)
        self.young.update(left)
        if len(self.young) < self._largest // 2:
            self.young, self._largest = dict(self.young), 0
        return True

    def _pop_young(self, count: int) -> list[tuple[int, Named]]:
        young = self.young
        found = list(islice(young.items(), count))
        for name, _ in found:
            del young[name]
        return found


def locations(named: Named) -> tuple[int, ...]:
    return (named,) if isinstance(named, int) else named


def _packed(named: Named) -> int:
    """Raises struct.error if these are not in a row."""
    assert isinstance(named, tuple)
    first = named[0] if named else 0
    if named != tuple(range(first, first + len(named))):
        raise struct.error
    return (len(named) + 1) << SHIFT | first


def _unpacked(value: int) -> Named:
    if value < SINGLE:
        return value
    first = value & SINGLE - 1
    return tuple(range(first, first + (value >> SHIFT) - 1))
