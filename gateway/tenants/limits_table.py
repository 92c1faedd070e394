"""Memory that the workers of a host share, for what is used of limits and budgets: rows by name, under one lock.

It is a memfd. The parent makes it (``LimitsTable.create``) and lets the workers inherit it; each opens it anew
(``LimitsTable.join``), so that its locks are its own. Locks are Linux's locks of open files: the kernel frees them
whenever their holder ends, however. One byte each is for:

- the memory: whoever reads or changes it holds this lock, for some microseconds (1.3 us to lock and unlock it);
- the life of each worker. What a worker has under way (concurrent requests, tokens and money in flight) is in cells of
  its own. Whoever finds that a worker does not live sets these to 0;
- the file with what was used, and who writes it.

A row is found by a hash of its name in one of two sets of ``WAYS`` places. So a look-up is bounded, a row that is given
to another name leaves no trace, and a full set has only to be asked which of its rows rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b

from gateway.tenants.limits_layout import KINDS, Kind

WAYS = 16
"""Places of a set. With two sets for each name eight tenths of the table fill before one has no place."""

MAX_WORKERS = 256
"""Above the cores of machines for which this is made. Bytes of the memory's locks are counted from it."""

VERSION = 3

_VERSION, _WORKERS, _KEY, _LOADED, _MODE, _REPLICAS, _TOLD, _WANTED, _CHANGES = range(9)

HEAD = _CHANGES + len(KINDS)
"""Cells before those that say which workers there are: version, workers, key of the hashes, loaded, how limits are
divided between hosts, how many of these there are, how often their parts have changed, how often more of a budget was
wanted, and the changes of each kind: to go through all rows takes a millisecond, for which the lock is held."""

_MEMORY, _FILE, _LEADER, _LIVES = range(4)
"""The bytes of the locks."""

_FLOCK = "hhqqi4x"
"""Linux's ``struct flock``: type, whence, first byte, bytes (0: all), and a process, which is 0 here."""


class LimitsTable:
    """``fd``: of the memory. ``workers``: how many may join. ``number``: which of them this is; -1: none, it has only
    made it. ``ints``, ``floats``: the cells of
    ``memory``."""

    def __init__(self, fd: int, number: int) -> None:
        self.fd = fd
        self.number = number
        self.memory = mmap.mmap(fd, 0)
        self.ints = memoryview(self.memory).cast("q")
        self.floats = memoryview(self.memory).cast("d")
        self.workers = self.ints[_WORKERS]
        self._key = struct.pack("q", self.ints[_KEY])
        self._depth = 0
        starts, at = [], HEAD + self.workers
        for kind in KINDS:
            starts.append(at)
            at += kind.cells(self.workers)
        self._starts = dict(zip(KINDS, starts, strict=True))

    @classmethod
    def create(cls, workers: int) -> LimitsTable:
        """For so many workers. Most of it is never touched, and so takes no memory. Raises OSError."""
        if not 1 <= workers <= MAX_WORKERS:
            raise ValueError(f"workers must be in 1..{MAX_WORKERS}")
        fd = os.memfd_create("kvgate-limits", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, 8 * (HEAD + workers + sum(kind.cells(workers) for kind in KINDS)))
            os.pwrite(fd, struct.pack("qq8s", VERSION, workers, os.urandom(8)), 0)
            return cls(fd, -1)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def join(cls, fd: int, number: int) -> LimitsTable:
        """As worker ``number`` (from 0) of the memory that was inherited as ``fd``, which stays open. What an earlier
        worker of this number has left under way is set to 0. Raises OSError; RuntimeError if that one still lives, or
        has made the memory in another form."""
        table = cls._open(fd, number)
        try:
            if table.ints[_VERSION] != VERSION or not 0 <= number < table.workers:
                raise RuntimeError(f"the limits' memory is not for worker {number} of this version of kvgate")
            if not table._try(_LIVES + number):
                raise RuntimeError(f"worker {number} lives already")
            with table:
                table._clear(number)
                table.ints[HEAD + number] = 1
            return table
        except BaseException:
            table.close()
            raise

    @classmethod
    def _open(cls, fd: int, number: int) -> LimitsTable:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(own, number)
        except BaseException:
            os.close(own)
            raise

    def close(self) -> None:
        """It lives no more. What it has under way is found by the others, as of one that was killed."""
        if self.fd >= 0:
            # Not by closing alone: the mapping has a copy of the descriptor, as long as a part of it is in use.
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            self.ints.release()
            self.floats.release()
            with contextlib.suppress(BufferError):  # a part of it is still held by a request's end
                self.memory.close()
            os.close(self.fd)
            self.fd = -1

    # locks

    def __enter__(self) -> None:
        """Hold the memory's lock; it may be nested. There is no await within."""
        if not self._depth:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _LOCK[_MEMORY])
        self._depth += 1

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _UNLOCK[_MEMORY])

    def lead(self) -> bool:
        """Whether it writes the file: the first who asks does, as long as it lives."""
        return self._try(_LEADER)

    def hold_file(self) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _LOCK[_FILE])

    def release_file(self) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _UNLOCK[_FILE])

    def _try(self, byte: int) -> bool:
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, byte))
        except BlockingIOError:
            return False
        return True

    # workers

    def bury(self) -> list[int]:
        """Set to 0 what workers that do not live any more have left under way. Returns their numbers."""
        dead = [
            number
            for number in range(self.workers)
            if number != self.number and self.ints[HEAD + number] and not self._lives(number)
        ]
        if dead:
            with self:
                for number in dead:
                    # Its successor may have come meanwhile: it has done this itself.
                    if not self._lives(number):
                        self._clear(number)
                        self.ints[HEAD + number] = 0
        return dead

    def _lives(self, number: int) -> bool:
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, _LIVES + number))
        return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)

    def _clear(self, number: int) -> None:
        for kind in KINDS:
            for row in self.rows(kind):
                at = self.counters(kind, row)
                for counter in range(kind.counters):
                    self.ints[at + counter * self.workers + number] = 0

    # rows

    def find(self, kind: Kind, name: str) -> int:
        """The row of ``name``; -1: it has none."""
        return self._find(kind, self.hash(kind, name))

    def hash(self, kind: Kind, name: str) -> int:
        """Never 0, which stands for no name. Keyed, since clients choose names in headers: nobody can make two that
        are the same here."""
        person = b"%d" % KINDS.index(kind)
        digest = blake2b(name.encode(), digest_size=8, key=self._key, person=person).digest()
        return int.from_bytes(digest, "little", signed=True) or 1

    def take(self, kind: Kind, name: str, rests: Callable[[int], bool]) -> int:
        """The row of ``name``, which is made where it has none: all 0. -1: there is no room, or none for such a long
        name. ``rests``: whether a row of
        another name may be taken for it; the one whose use is longest ago is."""
        hashed = self.hash(kind, name)
        row = self._find(kind, hashed)
        if row >= 0:
            return row
        if kind.text and len(name.encode()) > kind.text:
            return -1
        start = self._starts[kind]
        sets = [range(base, base + WAYS) for base in self._sets(kind, hashed)]
        # Of the two the emptier one, or half of the table would stay empty.
        free = max(([row for row in rows if not self.ints[start + row]] for rows in sets), key=len)
        if free:
            return self._make(kind, free[0], hashed, name)
        resting = [(self.floats[start + kind.rows + row], row) for rows in sets for row in rows if rests(row)]
        if not resting:
            return -1
        row = min(resting)[1]
        self.ints[start + row] = 0
        return self._make(kind, row, hashed, name)

    def hash_of(self, kind: Kind, row: int) -> int:
        """The hash of the name whose row it is now; 0: it has none."""
        return self.ints[self._starts[kind] + row]

    def used(self, kind: Kind, row: int, now: float) -> None:
        """Note that ``row`` is in use: Clock.monotonic()."""
        self.floats[self._starts[kind] + kind.rows + row] = now

    def idle_since(self, kind: Kind, row: int) -> float:
        """When it was last used: Clock.monotonic()."""
        return self.floats[self._starts[kind] + kind.rows + row]

    def changed(self, kind: Kind, row: int) -> None:
        """Note that ``row`` has changed, for ``changes``."""
        at = _CHANGES + KINDS.index(kind)
        self.ints[at] += 1
        self.ints[self._starts[kind] + 2 * kind.rows + row] = self.ints[at]

    def changes(self, kind: Kind, since: int) -> tuple[int, list[int]]:
        """The number of changes of this kind so far, and the rows of those after ``since``."""
        count = self.ints[_CHANGES + KINDS.index(kind)]
        if count <= since:
            return since, []
        at = self._starts[kind] + 2 * kind.rows
        return count, [row for row, number in enumerate(self.ints[at : at + kind.rows].tolist()) if number > since]

    def rows(self, kind: Kind) -> Iterator[int]:
        """Those that have a name."""
        start = self._starts[kind]
        return (row for row, hashed in enumerate(self.ints[start : start + kind.rows].tolist()) if hashed)

    def cells(self, kind: Kind, row: int) -> int:
        """Where the floats of ``row`` begin in ``floats``."""
        return self._starts[kind] + 3 * kind.rows + row * kind.row_cells(self.workers)

    def counters(self, kind: Kind, row: int) -> int:
        """Where the counters of ``row`` begin in ``ints``: of each counter one cell for each worker."""
        return self.cells(kind, row) + kind.floats

    def name(self, kind: Kind, row: int) -> str:
        at = 8 * (self.counters(kind, row) + kind.counters * self.workers)
        length = self.ints[at // 8]
        return bytes(self.memory[at + 8 : at + 8 + length]).decode()

    @property
    def host(self) -> str:
        """What others call this host, for as long as it has this memory."""
        return self._key.hex()

    @property
    def mode(self) -> int:
        """How limits are divided between hosts: see ``shared_rows.Mode``."""
        return self.ints[_MODE]

    @property
    def replicas(self) -> int:
        """How many hosts there were when that was last known; at least 1."""
        return self.ints[_REPLICAS] or 1

    @property
    def told(self) -> int:
        """How often ``divide`` was called."""
        return self.ints[_TOLD]

    @property
    def wanted(self) -> int:
        """How often ``want`` was called."""
        return self.ints[_WANTED]

    def want(self) -> None:
        """After more of a budget is wanted than this host may spend."""
        self.ints[_WANTED] += 1

    def divide(self, mode: int, replicas: int) -> None:
        """After a host's parts have changed."""
        self.ints[_TOLD] += 1
        self.ints[_REPLICAS] = replicas
        self.ints[_MODE] = mode

    @property
    def is_loaded(self) -> bool:
        """Whether what was kept from before is in it."""
        return bool(self.ints[_LOADED])

    @is_loaded.setter
    def is_loaded(self, value: bool) -> None:
        self.ints[_LOADED] = value

    def _sets(self, kind: Kind, hashed: int) -> tuple[int, int]:
        """Where the two sets of a hash begin."""
        sets = kind.rows // WAYS
        return (hashed & 0xFFFFFFFF) % sets * WAYS, (hashed >> 32 & 0xFFFFFFFF) % sets * WAYS

    def _find(self, kind: Kind, hashed: int) -> int:
        start = self._starts[kind]
        for base in self._sets(kind, hashed):
            ways = self.ints[start + base : start + base + WAYS].tolist()
            if hashed in ways:
                return base + ways.index(hashed)
        return -1

    def _make(self, kind: Kind, row: int, hashed: int, name: str) -> int:
        at, cells = 8 * self.cells(kind, row), kind.row_cells(self.workers)
        self.memory[at : at + 8 * cells] = bytes(8 * cells)
        start = self._starts[kind]
        self.ints[start + 2 * kind.rows + row] = 0
        if kind.text:
            text = name.encode()
            at = 8 * (self.counters(kind, row) + kind.counters * self.workers)
            self.memory[at + 8 : at + 8 + len(text)] = text
            self.ints[at // 8] = len(text)
        self.ints[start + row] = hashed  # at last: one that dies before has made nothing
        return row


def _lock(kind: int, byte: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0)


_LOCK = [_lock(fcntl.F_WRLCK, byte) for byte in (_MEMORY, _FILE)]
_UNLOCK = [_lock(fcntl.F_UNLCK, byte) for byte in (_MEMORY, _FILE)]
