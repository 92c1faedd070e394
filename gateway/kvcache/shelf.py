"""Which blocks there are, and who holds each: the block keys of a model, in stretches of up to 64 in a row.

Rules: a key stands for a block's tokens and everything before them, so that it has one place: either it is the head of
a stretch, or its predecessor stands before it in the same stretch. A holder of one kind (an endpoint's GPU tier, its
CPU tier, its predictions, ...) is a *place*, a small number. Places that hold a whole stretch are bits of one integer;
what the others hold of it are 64 bits for each. So a prompt is compared stretch by stretch, a hundred of them for
100,000 tokens, and the answer is exact, holes included. Synchronous; knows nothing of engines.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

BITS = 6
SIZE = 1 << BITS
"""Blocks of a stretch: what a place holds of one is an integer of 64 bits."""

OFFSET = SIZE - 1
"""A block's *location* is one number: its stretch's number, and in the lowest bits its offset there."""

ALL = tuple((1 << count) - 1 for count in range(SIZE + 1))
"""By count: the bits of so many leading blocks."""


class Stretch:
    """Blocks in a row.

    ``full``: a bit for each place that holds all of them; ``part``: place -> bits of what the others hold. ``used``:
    when it was last asked for, in the index's own count of placements.
    """

    __slots__ = ("full", "keys", "number", "part", "used")

    def __init__(self, number: int, keys: array[int]) -> None:
        self.number = number
        self.keys = keys
        self.full = 0
        self.part: dict[int, int] | None = None
        self.used = 0

    def held(self, place: int) -> int:
        """Bits of the blocks that ``place`` holds."""
        if self.full >> place & 1:
            return ALL[len(self.keys)]
        return self.part.get(place, 0) if self.part else 0

    def shares(self, keys: Sequence[int], at: int, offset: int = 0) -> int:
        """How many of ``keys`` from ``at`` on are these from ``offset`` on.

        Equal keys have equal predecessors: where the last pair is equal, all are; else the end is found by halves.
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


class Shelf:
    """All stretches of a model. ``size``: keys in them."""

    def __init__(self) -> None:
        self.size = 0
        self.heads: dict[int, Stretch] = {}
        self.stretches: list[Stretch | None] = []
        self._free: list[int] = []

    def at(self, location: int) -> Stretch:
        """The stretch of a block that some place holds."""
        stretch = self.stretches[location >> BITS]
        assert stretch is not None
        return stretch

    def key(self, location: int) -> int:
        return self.at(location).keys[location & OFFSET]

    def path(self, keys: Sequence[int]) -> Iterator[tuple[Stretch, int]]:
        """(stretch, how many of its blocks) that a prompt leads through, as far as its keys are known."""
        heads, position, count = self.heads, 0, len(keys)
        while position < count:
            stretch = heads.get(keys[position])
            if stretch is None:
                return
            end = position + len(stretch.keys)
            if end > count or stretch.keys[-1] != keys[end - 1]:
                end = position + stretch.shares(keys, position)
            yield stretch, end - position
            position = end

    def is_new(self, behind: int, keys: Sequence[int]) -> bool:
        """Whether nobody holds any of a run behind a location, -1 for a prompt's start.

        The first would be there, or a head as the others: what is neither has its predecessor before it.
        """
        if behind >= 0:
            after = self.at(behind).keys[(behind & OFFSET) + 1 :][:1]
            if after and keys and after[0] == keys[0]:
                return False
        return self.heads.keys().isdisjoint(keys)

    def enter(self, behind: int, keys: Sequence[int]) -> list[tuple[Stretch, int, int]]:
        """Make room for a run: (stretch, offset, count) of where its keys are. No place holds more than before.

        ``behind``: location of the block before the run, -1 if it begins a prompt. The caller marks all of them: a
        stretch that nobody holds would stay for ever.
        """
        heads, found = self.heads, []
        position, count = 0, len(keys)
        last: Stretch | None = None
        if behind >= 0:
            last = self.at(behind)
            offset = (behind & OFFSET) + 1
            position = last.shares(keys, 0, offset)
            if position:
                found.append((last, offset, position))
            if offset + position < len(last.keys):
                last = None
        while position < count:
            stretch = heads.get(keys[position])
            if stretch is not None:
                own = stretch.keys
                shared = len(own)
                end = position + shared
                if end <= count and own[-1] == keys[end - 1]:  # what most are: all of it
                    last = stretch
                else:
                    shared = stretch.shares(keys, position)
                    last = stretch if shared == len(own) else None
                found.append((stretch, 0, shared))
                position += shared
                continue
            room = SIZE - len(last.keys) if last is not None else 0
            run = self._unknown(keys, position, room or SIZE)
            if room:
                assert last is not None
                found.append((last, len(last.keys), len(run)))
                self._append(last, run)
            else:
                last = self._new(run)
                found.append((last, 0, len(run)))
            position += len(run)
        return found

    def mark(self, stretch: Stretch, place: int, bits: int) -> int:
        """``place`` holds these from now on; returns those that it held before."""
        if stretch.full >> place & 1:
            return bits
        part = stretch.part
        had = part.get(place, 0) if part else 0
        now = had | bits
        if now == ALL[len(stretch.keys)]:
            stretch.full |= 1 << place
            if had:
                assert part is not None
                self._leave_part(stretch, place)
        elif part is None:
            stretch.part = {place: now}
        else:
            part[place] = now
        return had & bits

    def unmark(self, stretch: Stretch, place: int, bits: int) -> None:
        """``place`` holds these no longer. Keys at the end that nobody holds are forgotten, and so an empty stretch."""
        bit = 1 << place
        full = stretch.full
        if full & bit:
            size = len(stretch.keys)
            if full == bit and stretch.part is None and bits == 1 << size - 1:
                # Its only holder gives up the last one: what engines do mostly.
                if size == 1:
                    self._drop(stretch)
                else:
                    stretch.keys.pop()
                    self.size -= 1
                return
            left = ALL[size] & ~bits
            stretch.full = full ^ bit
            if left:
                if stretch.part is None:
                    stretch.part = {}
                stretch.part[place] = left
        else:
            part = stretch.part
            had = part.get(place, 0) if part else 0
            if not had & bits:
                return
            assert part is not None
            if left := had & ~bits:
                part[place] = left
            else:
                self._leave_part(stretch, place)
        if not stretch.full:
            self._trim(stretch)

    def leave(self, stretch: Stretch, place: int) -> None:
        """``place`` holds nothing of it any more."""
        if held := stretch.held(place):
            self.unmark(stretch, place, held)

    def _unknown(self, keys: Sequence[int], start: int, most: int) -> array[int]:
        """The run from ``start`` on up to ``most`` keys, or to one that has a place already; the first has none."""
        run = keys[start : start + most]
        if len(run) > 1 and not self.heads.keys().isdisjoint(run):
            end = next((number for number, key in enumerate(run) if number and key in self.heads), len(run))
            run = run[:end]
        return array("Q", run)

    def _append(self, stretch: Stretch, run: array[int]) -> None:
        size, full = len(stretch.keys), stretch.full
        if full:  # they hold what there was, not what comes
            part = stretch.part = stretch.part or {}
            part.update(dict.fromkeys(places(full), ALL[size]))
            stretch.full = 0
        stretch.keys.extend(run)
        self.size += len(run)

    def _new(self, run: array[int]) -> Stretch:
        if self._free:
            number = self._free.pop()
        else:
            number = len(self.stretches)
            self.stretches.append(None)
        stretch = Stretch(number, run)
        self.stretches[number] = self.heads[run[0]] = stretch
        self.size += len(run)
        return stretch

    def _trim(self, stretch: Stretch) -> None:
        """Nobody holds all: forget the keys at the end that nobody holds."""
        part = stretch.part
        if part is None:
            self._drop(stretch)
            return
        size, top = len(stretch.keys), max(part.values()).bit_length()
        if top < size:
            del stretch.keys[top:]
            self.size -= size - top
            for place in [place for place, bits in part.items() if bits == ALL[top]]:
                stretch.full |= 1 << place
                self._leave_part(stretch, place)

    def _drop(self, stretch: Stretch) -> None:
        self.size -= len(stretch.keys)
        del self.heads[stretch.keys[0]]
        self.stretches[stretch.number] = None
        self._free.append(stretch.number)
        stretch.full, stretch.part, stretch.keys = 0, None, array("Q")

    def _leave_part(self, stretch: Stretch, place: int) -> None:
        assert stretch.part is not None
        del stretch.part[place]
        if not stretch.part:
            stretch.part = None


def places(mask: int) -> Iterator[int]:
    """The places whose bits are set, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit
