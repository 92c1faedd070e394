"""The threads of a model's tokenizer and the queue for them: shortest prompt first, fair between clients, no
starvation.

Rules: each waiting prompt has a price in characters, and the lowest is next: its own length, plus what its client has
used lately, minus what it has waited. A waiting prompt is in no executor's queue: if its client leaves, nothing of it
remains. A step that has begun cannot be stopped, and keeps its thread until it is done.
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
"""Characters by which a second of waiting lowers a price, and which a client may use per second without being charged:
a thread encodes this many in a second. So a prompt that has waited as long as its encoding takes has a price of 0, and
two million characters wait some seconds at most, behind any number of short prompts."""

MOST_OWED = 8 * 1024 * 1024
"""Characters that a client is charged at most for past use: one prompt of the longest that are encoded. Without a
bound, a client that used an idle gateway for an hour would wait for an hour's work."""


class Closed(Exception):
    """The queue was closed before the step began."""


@dataclass(order=True, slots=True)
class _Waiting:
    """A prompt that waits. The order of one client's prompts never changes: the time that two of them have waited grows
    alike.

    ``price``: its length and the time at which it came, in characters; what its client owes is added when it is
    compared. ``granted``: done when it gets a thread or has left.
    """

    price: float
    number: int
    granted: asyncio.Future[None] = field(compare=False)


class ThreadQueue:
    """``threads``: their number. ``name``: the threads' name, as a debugger shows it. For one event loop."""

    def __init__(self, threads: int, name: str) -> None:
        self.closed = False
        self._free = threads
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
        self._waiting: dict[str, list[_Waiting]] = {}
        self._owed: dict[str, float] = {}  # loop.time() at which a client will have paid, in characters
        self._count = 0

    @property
    def waiting(self) -> int:
        """The number of prompts without a thread."""
        return sum(map(len, self._waiting.values()))

    async def run(self, client: str, size: int, step: Callable[[], T]) -> T:
        """Run ``step`` in a thread and return its result. ``client`` is charged for ``size`` characters.

        If cancelled while it waits, it leaves nothing behind. Raises what ``step`` raises, and Closed if the queue is
        closed before it begins.
        """
        if self.closed:
            raise Closed
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            await self._wait(client, size, loop)
            if self.closed:
                raise Closed
        self._charge(client, size, loop.time() * AGEING)
        try:
            running = self._pool.submit(step)
        except BaseException:
            self._next(loop)
            raise
        running.add_done_callback(lambda _: self._ended(loop))
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Begin no more steps; those that have begun end."""
        self.closed = True
        self._pool.shutdown(wait=False)
        for queue in self._waiting.values():
            for one in queue:
                if not one.granted.done():
                    one.granted.set_result(None)
        self._waiting.clear()

    async def _wait(self, client: str, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._count += 1
        one = _Waiting(loop.time() * AGEING + size, self._count, loop.create_future())
        heapq.heappush(self._waiting.setdefault(client, []), one)
        try:
            await one.granted
        except asyncio.CancelledError:
            if one.granted.done() and not one.granted.cancelled():
                self._next(loop)  # it got a thread just before it was cancelled: pass that on
            else:
                self._leave(client, one)
            raise

    def _leave(self, client: str, one: _Waiting) -> None:
        queue = self._waiting.get(client, [])
        queue[:] = [other for other in queue if other is not one]
        heapq.heapify(queue)
        if not queue:
            self._waiting.pop(client, None)

    def _charge(self, client: str, size: int, now: float) -> None:
        self._owed[client] = min(max(self._owed.pop(client, 0.0), now) + size, now + MOST_OWED)
        while self._owed and self._owed[first := next(iter(self._owed))] <= now:
            del self._owed[first]

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in the thread, or where a step was cancelled before it began."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the free thread to the prompt with the lowest price."""
        now = loop.time() * AGEING
        while self._waiting:
            client = min(self._waiting, key=lambda client: self._price(client, now))
            queue = self._waiting[client]
            one = heapq.heappop(queue)
            if not queue:
                del self._waiting[client]
            if not one.granted.done():
                one.granted.set_result(None)
                return
        self._free += 1

    def _price(self, client: str, now: float) -> float:
        """The price of the client's first prompt."""
        return self._waiting[client][0].price + max(0.0, self._owed.get(client, 0.0) - now)
