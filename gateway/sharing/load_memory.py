"""The shared memory of loads: who wrote what, of which endpoint, and what has changed since one last looked.

One memfd, mapped by every process of a host:

    heads       a count of changes for each writer
    writers     a byte each: it is claimed. And how many of them, and of the slots, are in use
    names       a hash for each slot
    logs        the slots of each writer's last changes, in a ring
    rows        of each writer, by slot

A writer writes its own rows only: first the row, then its slot into the log, then its count. A number of eight bytes is
read whole. Who reads a row while it is written may see some fields from before; it reads that row again when it looks
next, since the count changes after the row. A reader that is further behind than half of the log reads all.

Locks are open file descriptions' locks on single bytes: the kernel frees them when their process ends, however. Each
writer holds one while it lives, and slots are given out under another.

Sparse: a page of it exists once something is written there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct, pack
from typing import Any

from gateway.fleet.load.others import NOTHING, Row

WORKERS = range(256)
"""The writers that are processes of this host."""

REPLICAS = range(256, 320)
"""The writers that are other hosts; the lead of this one writes for them."""

SLOTS = 1024
"""Engine cores of one gateway at a time. Above what one process can follow."""

HASH = 16
"""Bytes of a name's hash: two names never have the same."""

LOG = 2048
"""Changes of one writer that are kept: a reader that looks every 50 ms misses none of 20,000 a second."""

FORMAT = Struct("=qqqqddqdddddqq")
"""Whether it is bound, and the fields of a ``Row`` in their order; the first number is 0 of a row that is nobody's."""

STRIDE = 128
"""Bytes of a row: two cache lines, so that no two writers write to one."""

WRITERS = REPLICAS.stop
HEADS = 0
CLAIMED = HEADS + 8 * WRITERS
USED = CLAIMED + WRITERS
NAMES = 4096
LOGS = NAMES + HASH * SLOTS
ROWS = LOGS + 2 * LOG * WRITERS
SIZE = ROWS + STRIDE * SLOTS * WRITERS

SLOT_LOCK = WRITERS
"""The byte whose lock is held to give out slots; those below are the writers'."""

ATTEMPTS = 100_000
"""At a lock that is held for microseconds, each after letting others run: a second at the least."""


class TableFull(Exception):
    """There are more names than slots, or another process holds a lock that is never held for long."""


class LoadMemory:
    """``fd``: of the memory, of this process's own: locks are held by it. The given one stays the caller's."""

    def __init__(self, fd: int) -> None:
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self.fd, SIZE)
        whole = memoryview(self._map)
        self._heads = whole[HEADS:CLAIMED].cast("Q")
        self._claimed = whole[CLAIMED:USED]
        self._used = whole[USED : USED + 24].cast("Q")  # workers, replicas, slots
        self._logs = whole[LOGS:ROWS].cast("H")

    @staticmethod
    def create() -> int:
        """The descriptor of a new one, which is the caller's to close."""
        fd = os.memfd_create("kvgate-loads", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        return fd

    def close(self) -> None:
        """Frees what it has locked, too."""
        # Not by closing alone: the mapping has a copy of the descriptor.
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
        for view in (self._heads, self._claimed, self._used, self._logs):
            view.release()
        os.close(self.fd)

    # writers

    def claim(self, writer: int) -> None:
        """Be this writer, until the process ends or ``close``. Its rows are zero.

        Raises TableFull where another process is it.
        """
        self._lock_soon(writer)
        self._lock_soon(SLOT_LOCK)  # others are claimed just now, too, and all count
        try:
            self.use(writer)
        finally:
            self._unlock(SLOT_LOCK)
        self.clear(writer)
        self._claimed[writer] = 1

    def reap(self, *, but: int | None) -> list[int]:
        """Zero the rows of the workers that have ended; returns them. ``but``: who asks."""
        gone = []
        for writer in range(self._used[0]):
            if self._claimed[writer] and writer != but and self._lock(writer):
                try:
                    self.clear(writer)
                    self._claimed[writer] = 0
                finally:
                    self._unlock(writer)
                gone.append(writer)
        return gone

    def clear(self, writer: int) -> None:
        """Zero all rows of a writer."""
        for slot in range(self._used[2]):
            if self.bound(writer, slot):
                self.put(writer, slot, NOTHING, bound=False)

    def use(self, writer: int) -> None:
        """Readers look at it from now on."""
        kind, number = (0, writer) if writer in WORKERS else (1, writer - REPLICAS.start)
        if self._used[kind] <= number:
            self._used[kind] = number + 1

    # rows

    def put(self, writer: int, slot: int, row: tuple[Any, ...], *, bound: bool = True) -> int:
        """Write the fields of a ``Row``. ``bound``: somebody cares for this slot. Returns the count of changes."""
        FORMAT.pack_into(self._map, ROWS + STRIDE * (writer * SLOTS + slot), bound, *row)
        head = self._heads[writer]
        self._logs[writer * LOG + head % LOG] = slot
        self._heads[writer] = head = head + 1
        return head

    def get(self, writer: int, slot: int) -> Row:
        return Row(*self.fields(writer, slot))

    def fields(self, writer: int, slot: int) -> tuple[Any, ...]:
        """Those of ``get``."""
        return FORMAT.unpack_from(self._map, ROWS + STRIDE * (writer * SLOTS + slot))[1:]

    def bound(self, writer: int, slot: int) -> bool:
        start = ROWS + STRIDE * (writer * SLOTS + slot)
        return self._map[start] != 0

    def heads(self) -> list[int]:
        """The counts of changes: of workers up to the last one that there was, and then of replicas, by ``writers``."""
        workers, replicas, _ = self._used
        heads: list[int] = self._heads[:workers].tolist()
        if replicas:
            heads += self._heads[REPLICAS.start : REPLICAS.start + replicas].tolist()
        return heads

    @property
    def workers(self) -> int:
        """Up to the last one that there was."""
        return self._used[0]

    def writers(self) -> list[int]:
        """Those of ``heads``."""
        workers, replicas, _ = self._used
        return [*range(workers), *REPLICAS[:replicas]]

    def changes(self, writer: int, since: int, head: int) -> Iterable[int]:
        """The slots that a writer has changed from a count of changes to another; all, where that is too long ago."""
        count = head - since
        if not 0 <= count <= LOG // 2:
            return range(self._used[2])
        first, start = since % LOG, writer * LOG
        if count == 1:
            return (self._logs[start + first],)
        slots: list[int] = self._logs[start + first : start + min(first + count, LOG)].tolist()
        if first + count > LOG:
            slots += self._logs[start : start + first + count - LOG].tolist()
        return set(slots)

    # slots

    def slot(self, writer: int, name: str) -> int:
        """The slot of this name, which is bound by ``writer`` now: the same in all processes.

        Raises TableFull.
        """
        wanted = blake2b(name.encode(), digest_size=HASH).digest()
        self._lock_soon(SLOT_LOCK)
        try:
            self.use(writer)
            slot = self._find(wanted)
            if slot is None:
                slot = self._free()
                self._map[NAMES + HASH * slot : NAMES + HASH * (slot + 1)] = wanted
            if not self.bound(writer, slot):
                self.put(writer, slot, NOTHING)
            return slot
        finally:
            self._unlock(SLOT_LOCK)

    def _find(self, wanted: bytes) -> int | None:
        at, end = NAMES, NAMES + HASH * self._used[2]
        while (at := self._map.find(wanted, at, end)) >= 0:
            if (at - NAMES) % HASH == 0:
                return (at - NAMES) // HASH
            at += 1
        return None

    def _free(self) -> int:
        """A slot that had no name, or else one that is nobody's."""
        used = self._used[2]
        if used < SLOTS:
            self._used[2] = used + 1
            return used
        writers = self.writers()
        for slot in range(SLOTS):
            if not any(self.bound(writer, slot) for writer in writers):
                return slot
        raise TableFull(f"more than {SLOTS} engine cores")

    # locks

    def _lock_soon(self, byte: int) -> None:
        for _ in range(ATTEMPTS):
            if self._lock(byte):
                return
            os.sched_yield()
        raise TableFull(f"another process holds lock {byte} of the loads' memory")

    def _lock(self, byte: int) -> bool:
        try:
            self._set_lock(fcntl.F_WRLCK, byte)
        except BlockingIOError:
            return False
        return True

    def _unlock(self, byte: int) -> None:
        self._set_lock(fcntl.F_UNLCK, byte)

    def _set_lock(self, kind: int, byte: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))
