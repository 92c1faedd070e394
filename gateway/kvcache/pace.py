"""When it is looked at what engines have said: at all of them together, a few times a second, and before a request is
placed.

A busy engine says something in each of its steps, and many engines never say it at the same time. To be woken for each
message costs a gateway in which nothing else happens five times what the message itself does, since the caches of the
core are cold each time; the messages of all engines that came within a tick cost that once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

TICK = 0.05
"""Seconds between two looks while no request is placed: messages must not pile up. Twice as long would save another
fifth of what the events of four busy engines cost."""

FRESH = 0.005
"""Seconds by which what is known may be older than what has come, where a request is placed. In a small cache that
thrashes, blocks go within some of an engine's steps: in the replay of three such engines 0.7 to 2.0 % of the tokens
that were expected to be cached had gone with 50 ms, 0.1 to 0.3 % with 5 ms. Steps of large models take 10 ms and
more."""

TOGETHER = 4
"""Engines whose messages are taken between two turns of the loop: half a millisecond. A hundred engines' at once would
hold up all that the gateway relays for 20 ms."""


class Paced(Protocol):
    """One that is looked at."""

    def look(self) -> bool:
        """Tell who is concerned what has come. False: nothing comes, and one need not look again."""

    def peek(self) -> bool:
        """The same, outside the tick; whether something has come."""


class Pace:
    """Looks every ``tick`` seconds of the running loop at those who have joined, while there are any."""

    def __init__(self, tick: float = TICK) -> None:
        self._tick = tick
        self._joined: dict[Paced, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = -FRESH

    async def catch_up(self) -> None:
        """Before a request is placed: have what has come by now applied, if the last look is not fresh. Where nothing
        has, nothing is waited for; else for a turn of the loop, or some, if many engines have said something."""
        if not self._joined or (now := asyncio.get_running_loop().time()) - self._looked < FRESH:
            return
        self._looked = now
        told = 0
        for one in list(self._joined):
            if one in self._joined and one.peek():
                told += 1
                if told % TOGETHER == 0:
                    await asyncio.sleep(0)
        if told % TOGETHER:
            await asyncio.sleep(0)

    def join(self, one: Paced) -> None:
        self._joined[one] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)

    def leave(self, one: Paced) -> None:
        """Harmless if it has not joined."""
        self._joined.pop(one, None)
        if not self._joined and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._looked = loop.call_later(self._tick, self._look), loop.time()
        self._look_at(list(self._joined))

    def _look_at(self, some: list[Paced]) -> None:
        for one in some[:TOGETHER]:
            if one in self._joined and not one.look():  # who has left meanwhile may be closed
                self.leave(one)
        if others := some[TOGETHER:]:
            asyncio.get_running_loop().call_soon(self._look_at, others)
