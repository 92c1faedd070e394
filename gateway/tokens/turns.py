"""The threads of a model's tokenizer, and which prompt has the next one: the shortest first, fair between clients, and
none waits for ever.

Rules: what waits has a price in characters, and the lowest is next: its own length, and what its client has had lately,
less what it has waited. A prompt that waits is in no thread's queue: its client may leave, and nothing is left of it. A
thread that has begun cannot be stopped, and keeps its place until it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

AGEING = 1_000_000.0
"""Characters of its price that a second of waiting takes off, and that a client may have in a second without being
charged for it: what a thread encodes in that time. So whoever has waited as long as its own prompt takes is served as
if that had no length, and two million characters wait no longer than some seconds for any number of short ones."""

MOST_OWED = 8 * 1024 * 1024
"""Characters that a client is charged at most for what it has had: one prompt of the longest that are encoded. Without
a bound, whoever used an idle gateway for an hour would wait for one."""


@dataclass(order=True, slots=True)
class _Waiting:
    """Of one client the order never changes: what two of them have waited grows alike. ``price``: less what its client
    owes, and with what it had waited when it came. ``turn``: is done once it has a thread, or it left."""

    price: float
    number: int
    turn: asyncio.Future[None] = field(compare=False)


class Turns:
    """``threads``: how many there are; ``name``: of each, as a debugger shows it. For one loop."""

    def __init__(self, threads: int, name: str) -> None:
        self.closed = False
        self._free = threads
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
        self._waiting: dict[str, list[_Waiting]] = {}
        self._owed: dict[str, float] = {}  # loop.time() at which a client will have paid, in characters
        self._count = 0

    @property
    def waiting(self) -> int:
        """Prompts without a thread."""
        return sum(map(len, self._waiting.values()))

    async def run(self, client: str, size: int, step: Callable[[], T]) -> T:
        """What ``step`` returns, in a thread. ``client``: who is charged for ``size`` characters.

        Cancelled while it waits, it leaves nothing behind. Raises what ``step`` does.
        """
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            await self._wait(client, size, loop)
        self._charge(client, size, loop.time() * AGEING)
        try:
            running = self._pool.submit(step)
        except BaseException:
            self._next(loop)
            raise
        running.add_done_callback(lambda _: self._ended(loop))
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Nothing begins any more; what waits is cancelled."""
        self.closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for line in list(self._waiting.values()):
            for one in line:
                one.turn.cancel()

    async def _wait(self, client: str, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._count += 1
        one = _Waiting(loop.time() * AGEING + size, self._count, loop.create_future())
        heapq.heappush(self._waiting.setdefault(client, []), one)
        try:
            await one.turn
        except asyncio.CancelledError:
            if one.turn.done() and not one.turn.cancelled():
                self._next(loop)  # it was given a thread at that very moment
            else:
                self._leave(client, one)
            raise

    def _leave(self, client: str, one: _Waiting) -> None:
        line = self._waiting.get(client, [])
        line[:] = [other for other in line if other is not one]
        heapq.heapify(line)
        if not line:
            self._waiting.pop(client, None)

    def _charge(self, client: str, size: int, now: float) -> None:
        self._owed[client] = min(max(self._owed.pop(client, 0.0), now) + size, now + MOST_OWED)
        while self._owed and self._owed[first := next(iter(self._owed))] <= now:
            del self._owed[first]

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the thread, or where a step was cancelled before it began."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread is free: give it to who is next."""
        now = loop.time() * AGEING
        while self._waiting:
            client = min(self._waiting, key=lambda client: self._price(client, now))
            line = self._waiting[client]
            one = heapq.heappop(line)
            if not line:
                del self._waiting[client]
            if not one.turn.done():
                one.turn.set_result(None)
                return
        self._free += 1

    def _price(self, client: str, now: float) -> float:
        """Of its first in line."""
        return self._waiting[client][0].price + max(0.0, self._owed.get(client, 0.0) - now)
