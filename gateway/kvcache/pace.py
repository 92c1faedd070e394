"""When it is looked at what engines have said: at all of them together, a few times a second.

A busy engine says something in each of its steps, and many engines never say it at the same time. To be woken for each
message costs a gateway in which nothing else happens five times what the message itself does, since the caches of the
core are cold each time; the messages of all engines that came within a tick cost that once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

TICK = 0.05
"""Seconds between two looks, and so what is known of a cache may be older by that. It is little beside what a decision
waits for and lasts: scrapes come each second, blocks stay for minutes, and what we have placed ourselves is predicted
until its events come. Twice as long would save another fifth of what the events of four busy engines cost."""

TOGETHER = 4
"""Engines whose messages are taken between two turns of the loop: half a millisecond. A hundred engines' at once would
hold up all that the gateway relays for 20 ms."""


class Paced(Protocol):
    """One that is looked at."""

    def look(self) -> bool:
        """Tell who is concerned what has come. False: nothing comes, and one need not look again."""


class Pace:
    """Looks every ``tick`` seconds of the running loop at those who have joined, while there are any."""

    def __init__(self, tick: float = TICK) -> None:
        self._tick = tick
        self._joined: dict[Paced, None] = {}
        self._timer: asyncio.TimerHandle | None = None

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
        self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)
        self._look_at(list(self._joined))

    def _look_at(self, some: list[Paced]) -> None:
        for one in some[:TOGETHER]:
            if one in self._joined and not one.look():  # who has left meanwhile may be closed
                self.leave(one)
        if others := some[TOGETHER:]:
            asyncio.get_running_loop().call_soon(self._look_at, others)
