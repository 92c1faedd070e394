"""The loads of all processes of this host, and of other hosts as its lead hears of them, in shared memory.

Each process binds its ledgers by the engine core's name. What a ledger books becomes a row, and the rows of others are
in its figures once it has caught up. Rows are written at the end of the loop's iteration in which they change, and read
every ``LOOK``: a request changes a row three times, when it is placed, at its first token, and at its end, and to write
or read some rows in a row takes a fraction of what each takes among the steps of a request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from gateway.fleet.load.joint import hear, join, leave, own_row
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.load.others import NOTHING, Row, merged
from gateway.sharing.load_memory import REPLICAS, LoadMemory

LOOK = 0.002
"""Seconds between two looks at others' rows, at the least. Four processes that know of each other's bookings after 3 ms
reach the goodput of one to within a point (``kvgate replay --deciders 4 --delay 3ms``)."""

Cursor = Sequence[int] | None
"""How far one has read; None: not at all."""


class _Bound:
    """A name of this process. ``ledgers``: one, but where a reload has removed an engine and added it anew. ``row``:
    as it was last written."""

    __slots__ = ("dirty", "ledgers", "name", "row", "slot")

    def __init__(self, name: str, slot: int) -> None:
        self.name = name
        self.slot = slot
        self.ledgers: list[Ledger] = []
        self.row: tuple[Any, ...] = NOTHING
        self.dirty = False


class LoadTable:
    """``fd``: of the memory, as its parent made it or ``create`` does. ``writer``: the number of this process, of
    ``WORKERS``; None: it has no loads of its own, and only looks after the others. ``soon``: calls what it is given at
    the end of the loop's iteration; without it a row is written with each change.

    Raises TableFull where another process is this writer.
    """

    def __init__(
        self, fd: int, writer: int | None, *, soon: Callable[[Callable[[], None]], object] | None = None
    ) -> None:
        self._memory = LoadMemory(fd)
        self._writer = writer
        self._soon = soon
        self._bound: dict[int, _Bound] = {}
        self._slots: dict[str, int] = {}
        self._dirty: list[_Bound] = []
        self._planned = False
        self._written: dict[int, set[int]] = {}
        self._next_look = 0.0
        self._seen: list[int] = []
        if writer is not None:
            self._memory.claim(writer)

    @classmethod
    def create(cls, writer: int | None = None, *, soon: Callable[[Callable[[], None]], object] | None = None) -> Self:
        """With memory of its own."""
        fd = LoadMemory.create()
        try:
            return cls(fd, writer, soon=soon)
        finally:
            os.close(fd)

    @property
    def fd(self) -> int:
        """For processes that this one starts, until ``close``."""
        return self._memory.fd

    def close(self) -> None:
        """The ledgers are alone again, and this process's rows are zero."""
        for bound in list(self._bound.values()):
            for ledger in bound.ledgers:
                leave(ledger)
            self._unbind(bound)
        self._memory.close()

    # this process's ledgers

    def bind(self, name: str, ledger: Ledger) -> None:
        """Share the load of the engine core of this name. Raises TableFull."""
        assert self._writer is not None
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = self._memory.slot(self._writer, name)
            self._bound[slot] = _Bound(name, slot)
        bound = self._bound[slot]
        bound.ledgers.append(ledger)
        join(ledger, partial(self._touch, bound), self.catch_up)
        for writer in self._memory.writers():
            if writer != self._writer:
                hear(ledger, writer, self._memory.get(writer, slot))
        self._touch(bound)

    def release(self, name: str, ledger: Ledger) -> None:
        """The ledger's engine core is dropped: nothing new goes there. What is open on it is shared until it ends."""
        bound = self._bound.get(self._slots.get(name, -1))
        if bound is None or ledger not in bound.ledgers:
            return
        if ledger.own_requests:
            assert ledger.others is not None
            ledger.others.touched = partial(self._touch_leaving, bound, ledger)
            return
        bound.ledgers.remove(ledger)
        leave(ledger)
        if bound.ledgers:
            self._touch(bound)
        else:
            self._unbind(bound)

    def look(self, now: float) -> None:
        """Before each decision, at ``now`` (Clock.monotonic()): catch up, if that was not done just now."""
        if now >= self._next_look:
            self._next_look = now + LOOK
            self.catch_up()

    def catch_up(self) -> None:
        """Bring to the bound ledgers what others have written since the last time."""
        heads = self._memory.heads()
        if heads == self._seen:
            return
        seen, memory, bounds = self._seen, self._memory, self._bound
        writers, get = memory.writers(), memory.fields
        if len(seen) != len(heads):  # writers are new: only then the numbers in the lists move
            seen = self._seen = [0] * len(heads)
        self._seen = heads
        for writer, since, head in zip(writers, seen, heads, strict=False):
            if head == since or writer == self._writer:
                continue
            for slot in memory.changes(writer, since, head):
                if (bound := bounds.get(slot)) is not None:
                    row = get(writer, slot)
                    for ledger in bound.ledgers:
                        hear(ledger, writer, row)

    def publish(self) -> None:
        """Write what has changed here."""
        dirty, self._dirty = self._dirty, []
        for bound in dirty:
            bound.dirty = False
            self._write(bound)

    def tick(self) -> list[int]:
        """What time alone brings, several times a second: prompts that count as computed, the answers' growth, and
        workers that have ended, whose rows are zeroed. Returns these."""
        for bound in list(self._bound.values()):
            if any(ledger.own_requests for ledger in bound.ledgers):
                self._write(bound)
        gone = self._memory.reap(but=self._writer)
        self.catch_up()
        return gone

    def reap(self) -> list[int]:
        """Zero the rows of the workers that have ended; returns their numbers."""
        return self._memory.reap(but=self._writer)

    def _touch(self, bound: _Bound) -> None:
        if bound.dirty:
            return
        bound.dirty = True
        self._dirty.append(bound)
        if self._soon is None:
            self.publish()
        elif not self._planned:
            self._planned = True
            self._soon(self._publish_planned)

    def _publish_planned(self) -> None:
        self._planned = False
        self.publish()

    def _touch_leaving(self, bound: _Bound, ledger: Ledger) -> None:
        if ledger.own_requests:
            self._touch(bound)
        else:
            self.release(bound.name, ledger)

    def _write(self, bound: _Bound) -> None:
        ledgers = bound.ledgers
        if len(ledgers) == 1:
            row = own_row(ledgers[0])
        elif ledgers:
            row = merged(Row(*own_row(ledger)) for ledger in ledgers)
        else:
            return
        if row != bound.row:
            assert self._writer is not None
            bound.row = row
            self._memory.put(self._writer, bound.slot, row)

    def _unbind(self, bound: _Bound) -> None:
        assert self._writer is not None
        del self._bound[bound.slot], self._slots[bound.name]
        self._memory.put(self._writer, bound.slot, NOTHING, bound=False)
        for writer, slots in self._written.items():
            if bound.slot in slots:
                slots.remove(bound.slot)
                self._memory.put(writer, bound.slot, NOTHING, bound=False)

    # for the lead: what other hosts tell, and what they are told

    def write(self, writer: int, name: str, row: Row) -> bool:
        """The row of a replica, one of ``REPLICAS``, with times of this host. Only the lead does this.

        Returns whether it counts: a name that is not bound here is none of this host's.
        """
        slot = self._slots.get(name)
        if slot is None:
            return False
        self._memory.use(writer)
        self._memory.put(writer, slot, row, bound=row != NOTHING)
        self._written.setdefault(writer, set()).add(slot)
        return True

    def clear(self, writer: int) -> None:
        """Zero the rows of a replica that is gone; a new lead does so with all, since it hears all rows anew."""
        assert writer in REPLICAS
        self._memory.clear(writer)
        self._written.pop(writer, None)

    def changed(self, cursor: Cursor) -> tuple[Cursor, dict[str, Row]]:
        """What all workers of this host together have booked, by name, where that has changed since ``cursor``; with
        None, all that is not zero. And the next cursor."""
        self.publish()
        memory, workers = self._memory, self._memory.workers
        heads = memory.heads()[:workers]
        slots: set[int] = set()
        if cursor is None:
            slots.update(self._bound)
        else:
            before = [*cursor, *[0] * (workers - len(cursor))]
            for writer, (since, head) in enumerate(zip(before, heads, strict=True)):
                if since != head:
                    slots.update(memory.changes(writer, since, head))
        found = {}
        for slot in slots:
            bound = self._bound.get(slot)
            if bound is not None:
                row = merged(memory.get(writer, slot) for writer in range(workers))
                if cursor is not None or row != NOTHING:
                    found[bound.name] = row
        return heads, found
