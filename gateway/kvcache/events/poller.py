"""Polls the sockets of all engines together, a few times a second, and before a request is placed.

A busy engine sends a message in each of its steps, and many engines never at the same time. To be woken for each
message costs an idle gateway five times what the message itself does, since the core's caches are cold each time; the
messages of all engines that came within a tick cost that once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

TICK = 0.05
"""Seconds between two polls while no request is placed: messages must not pile up. Twice as long would save another
fifth of what the events of four busy engines cost."""

FRESH = 0.005
"""Seconds by which the index may lag behind what has come, where a request is placed. In a small cache that thrashes,
blocks go within some of an engine's steps: in the replay of three such engines 0.7 to 2.0 % of the tokens that were
expected to be cached had gone with 50 ms, 0.1 to 0.3 % with 5 ms. Steps of large models take 10 ms and more."""

PER_TURN = 4
"""Engines whose messages are taken between two turns of the loop: half a millisecond. A hundred engines' at once would
hold up all that the gateway relays for 20 ms."""


class Pollable(Protocol):
    """What is polled."""

    def poll(self) -> bool:
        """Signal what has come. False: nothing comes, and it need not be polled any more."""

    def check(self) -> bool:
        """The same, outside the tick; whether something has come."""


class Poller:
    """Polls its members every ``tick`` seconds of the running loop, while there are any."""

    def __init__(self, tick: float = TICK) -> None:
        self._tick = tick
        self._members: dict[Pollable, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._polled_at = -FRESH

    async def catch_up(self) -> None:
        """Before a request is placed: have what has come by now applied, if the last poll is not fresh. Returns at once
        if nothing has; else after a turn of the loop, or some, if many engines have sent something."""
        if not self._members or (now := asyncio.get_running_loop().time()) - self._polled_at < FRESH:
            return
        self._polled_at = now
        found = 0
        for one in list(self._members):
            if one in self._members and one.check():
                found += 1
                if found % PER_TURN == 0:
                    await asyncio.sleep(0)
        if found % PER_TURN:
            await asyncio.sleep(0)

    def add(self, one: Pollable) -> None:
        self._members[one] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick, self._poll_all)

    def remove(self, one: Pollable) -> None:
        """Harmless if it was not added."""
        self._members.pop(one, None)
        if not self._members and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._polled_at = loop.call_later(self._tick, self._poll_all), loop.time()
        self._poll_some(list(self._members))

    def _poll_some(self, some: list[Pollable]) -> None:
        for one in some[:PER_TURN]:
            if one in self._members and not one.poll():  # one that was removed meanwhile may be closed
                self.remove(one)
        if others := some[PER_TURN:]:
            asyncio.get_running_loop().call_soon(self._poll_some, others)
