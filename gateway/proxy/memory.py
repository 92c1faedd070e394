"""One byte budget for all requests and answers that are held: request bodies while they are received, queued or placed,
their decompressed bytes, and unstreamed answers until their clients have them.

Rules: a body that arrives with its head is counted at once or refused. A body that grows while it is read waits for
room, first come, first served. It is not read while it waits, so back-pressure reaches its sender. If the waiting
bodies hold the whole budget, none would ever be released: the newest is refused. The newest is also refused if nothing
was released for some seconds. What stands by for an endpoint may hold a part of the budget only. ``Share.release``
gives every byte back once, whatever happens.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

from gateway.errors import Exhausted

LARGE = 3 / 4
"""The part of the budget that growing bodies may use. The rest is for bodies that arrive with their heads, as nearly
all do, so that large bodies that stall cannot block all requests."""

STANDING_BY = 1 / 2
"""The part of the budget that bodies may use whose requests stand by for an endpoint. They do so for minutes: without a
limit, those of one model without endpoints would have the requests of all others refused."""

PATIENCE = 5.0
"""Seconds without room until the newest waiting body is refused: within them most answers of a busy fleet begin, and a
stream releases its body when it begins."""

RETRY = 5.0
"""Seconds in ``Retry-After``."""


_AGE = attrgetter("number")


@dataclass(slots=True)
class _Wait:
    """``then``: called once, with whether there is room."""

    size: int
    then: Callable[[bool], None]
    timer: asyncio.TimerHandle


class Memory:
    """``limit``: bytes. ``held``: of all shares; ``standing_by``: of those whose requests stand by for an endpoint."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.standing_by = 0
        self.shares = 0  # that were ever made
        self._waiting: dict[Share, _Wait] = {}
        # The waiting shares, the oldest first, and the bytes that they hold. Thousands may wait: a share is found by
        # bisection.
        self._line: list[Share] = []
        self._held_in_line = 0
        self._serving = False

    @property
    def waiting(self) -> int:
        """Shares that wait for room."""
        return len(self._waiting)

    def allow(self, limit: int) -> None:
        """Set another limit."""
        self.limit = limit
        self._serve_waiting()

    def full(self) -> Exhausted:
        return Exhausted(
            f"The gateway holds as many bytes of requests and answers as it may (listen.max_held: {self.limit}); "
            "try again later.",
            retry_after=RETRY,
        )

    def _has_room(self, size: int) -> bool:
        return self.held + size <= self.limit * LARGE

    def _wait(self, share: Share, size: int, then: Callable[[bool], None]) -> None:
        timer = asyncio.get_running_loop().call_later(PATIENCE, self._overdue, share)
        self._waiting[share] = _Wait(size, then, timer)
        insort(self._line, share, key=_AGE)
        self._held_in_line += share.size
        self._serve_waiting()

    def _leave(self, share: Share) -> _Wait | None:
        wait = self._waiting.pop(share, None)
        if wait is not None:
            wait.timer.cancel()
            del self._line[bisect_left(self._line, share.number, key=_AGE)]
            self._held_in_line -= share.size
        return wait

    def _serve_waiting(self) -> None:
        """Grant the waiting shares for which there is room, the oldest first. If no byte would ever be released, refuse
        the newest.

        A share that is granted or refused may at once wait again, or release. It is handled by the loop here: with
        recursive calls, hundreds of shares would overflow the interpreter's stack.
        """
        if self._serving:
            return
        self._serving = True
        try:
            while self._waiting and self._serve_one():
                pass
        finally:
            self._serving = False

    def _serve_one(self) -> bool:
        """Whether a share was granted or refused."""
        oldest = self._line[0]
        size = self._waiting[oldest].size
        if self._has_room(size):
            wait = self._leave(oldest)
            assert wait is not None
            self._add(oldest, size)
            wait.then(True)
        elif self.held == self._held_in_line:
            self._refuse_newest()
        else:
            return False
        return True

    def _add(self, share: Share, size: int) -> None:
        self.held += size
        share.size += size
        if share in self._waiting:
            self._held_in_line += size

    def _refuse_newest(self) -> None:
        wait = self._leave(self._line[-1])
        assert wait is not None
        wait.then(False)

    def _overdue(self, share: Share) -> None:
        self._refuse_newest()
        if (wait := self._waiting.get(share)) is not None:
            wait.timer = asyncio.get_running_loop().call_later(PATIENCE, self._overdue, share)
        self._serve_waiting()


class Share:
    """The bytes of one request, or of one answer. ``size``: bytes. ``number``: a later share has a higher one."""

    __slots__ = ("_memory", "number", "size")

    def __init__(self, memory: Memory) -> None:
        """Holds nothing yet."""
        self._memory = memory
        self.number = memory.shares = memory.shares + 1
        self.size = 0

    def take(self, size: int) -> None:
        """Add ``size`` bytes, which are in memory already. Raises Exhausted."""
        memory = self._memory
        if memory.held + size > memory.limit:
            raise memory.full()
        memory.held += size  # not by ``_add``: a share that takes does not wait for room, only one that grows does
        self.size += size

    def keep(self, size: int, *, instead_of: int = 0) -> None:
        """Add ``size`` bytes even without room: until now they belonged to another share. ``instead_of``: bytes of this
        share that they replace."""
        memory = self._memory
        memory._add(self, size - instead_of)
        if memory._waiting and size < instead_of:
            memory._serve_waiting()

    def grow(self, size: int, then: Callable[[bool], None]) -> bool:
        """Add ``size`` bytes, if there is room and no share waits.

        False: ``then`` will be called with the result. Until then no other method but ``release`` may be called.
        """
        memory = self._memory
        if not memory._waiting and memory._has_room(size):
            memory._add(self, size)
            return True
        memory._wait(self, size, then)
        return False

    async def grown(self, size: int) -> None:
        """Add ``size`` bytes as soon as there is room. Raises Exhausted if the share is refused."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def then(granted: bool) -> None:
            if not turn.done():
                turn.set_result(granted)

        if not self.grow(size, then):
            try:
                granted = await turn
            except asyncio.CancelledError:
                self._memory._leave(self)
                raise
            if not granted:
                raise self._memory.full()

    @contextmanager
    def standing_by(self) -> Iterator[None]:
        """While its request stands by for an endpoint. One may do so whatever its size.

        Raises Exhausted where it and those that do already would hold more than their part of the budget.
        """
        memory, size = self._memory, self.size
        if memory.standing_by and memory.standing_by + size > memory.limit * STANDING_BY:
            raise Exhausted(
                "Requests that wait for an endpoint hold as many bytes as they may "
                f"(half of listen.max_held: {memory.limit}); try again later.",
                retry_after=RETRY,
            )
        memory.standing_by += size
        try:
            yield
        finally:
            memory.standing_by -= size

    def release(self) -> None:
        """Give all bytes back; harmless when repeated. The share may be used again."""
        memory = self._memory
        waited = memory._leave(self) if memory._waiting else None
        if self.size or waited is not None:
            memory.held -= self.size
            self.size = 0
            if memory._waiting:
                memory._serve_waiting()
