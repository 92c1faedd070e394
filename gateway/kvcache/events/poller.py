"""Looks for messages on the sockets of all engines together: before a request is placed, and a few times a second
while requests are; once a second while nobody asks.

A busy engine sends a message in each of its steps, and many engines never at the same time. To be woken for each
message costs an idle gateway five times what the message itself does, since the core's caches are cold each time; the
messages that came within a second cost that once. No socket's descriptor is watched for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import Protocol

import zmq

TICK = 0.05
"""Seconds between two looks while requests are placed."""

LINGER = 1.0
"""Seconds for which that goes on after a request was placed: most prompts are computed in that time, and what the
engine reports of it is known when the answer is learned from. Later than that, it is known within ``IDLE``."""

IDLE = 1.0
"""Seconds between two looks while no request is placed. An engine of a step every 10 ms has sent 100 messages then,
which a socket holds; what comes beyond waits in the engine."""

FRESH = 0.005
"""Seconds by which the index may lag behind what has come, where a request is placed. In a small cache that thrashes,
blocks go within some of an engine's steps: in the replay of three such engines 0.7 to 2.0 % of the tokens that were
expected to be cached had gone with 50 ms, 0.1 to 0.3 % with 5 ms. Steps of large models take 10 ms and more."""

PER_TURN = 4
"""Engines whose messages are applied between two turns of the loop: half a millisecond where a message or two came of
each, two where many did. A hundred engines' at once would hold up all that the gateway relays for 20 ms and more."""

PATIENCE = 32
"""Turns for which others wait until these have applied what had come: some 1,000 messages. An engine that never stops
sending holds up neither the others nor a request."""

LONG = 8
"""Turns, some 5 ms, that a look may take while no request is placed, since the next request may have to wait for it.
The look after a longer one comes in half the time."""


class Member(Protocol):
    """Whose socket is looked at."""

    @property
    def idle(self) -> bool:
        """What has come is applied, as far as it can be for now."""

    def wake(self) -> None:
        """Have what has come applied: soon, by a task of its own."""


class Poller:
    """Looks at its members' sockets in the running loop, while there are any. ``idle``: as ``IDLE``."""

    def __init__(self, idle: float = IDLE) -> None:
        self._longest = self._pause = idle
        self._short = min(TICK, idle)
        self._members: dict[object, Member] = {}
        self._polled: list[tuple[zmq.Socket[bytes], int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = self._placed_at = -inf
        # The look under way: those that have something and were not woken yet, those that were, its turns.
        self._due: deque[Member] = deque()
        self._woken: list[Member] = []
        self._turns = 0
        self._done = asyncio.Event()
        self._done.set()

    async def catch_up(self, *, placing: bool = True) -> None:
        """Have what has come by now applied, if the last look is not fresh. Returns at once if nothing has come; else
        after some turns of the loop. ``placing``: for a request, whose engine will soon report what it does."""
        if not self._members:
            return
        loop = asyncio.get_running_loop()
        if placing:
            self.expect()
        if not self._done.is_set() and loop.time() - self._looked_at >= FRESH:
            await self._done.wait()
        if self._done.is_set() and loop.time() - self._looked_at >= FRESH:
            self._look()
        if not self._done.is_set():
            await self._done.wait()

    def expect(self) -> None:
        """Messages of interest will come: look every ``TICK`` for a while."""
        loop = asyncio.get_running_loop()
        before, self._placed_at = self._placed_at, loop.time()
        if self._timer is not None and self._placed_at - before >= LINGER:
            self._timer.cancel()
            self._timer = loop.call_later(self._short, self._tick)

    def add(self, socket: zmq.Socket[bytes], member: Member) -> None:
        """Until ``remove``, only ``member`` receives from ``socket``."""
        self._members[socket] = member
        self._polled.append((socket, int(zmq.POLLIN)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._tick)

    def remove(self, socket: zmq.Socket[bytes]) -> None:
        """Harmless if it was not added."""
        if (member := self._members.pop(socket, None)) is None:
            return
        self._polled = [each for each in self._polled if each[0] is not socket]
        for some in (self._due, self._woken):
            if member in some:
                some.remove(member)
        if not self._members and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        placing = now - self._placed_at < LINGER
        look = self._done.is_set() and not (placing and now - self._looked_at < self._short)
        if placing:
            due = (now if look else max(self._looked_at, now - self._short / 2)) + self._short
        else:
            # At whole multiples of the pause: with the first engines' scrapes, which wake the loop anyway.
            due = ((now + self._pause / 2) // self._pause + 1) * self._pause
        self._timer = loop.call_at(due, self._tick)
        if look:
            self._look()

    def _look(self) -> None:
        """Find out who has something, and begin to have it applied."""
        self._looked_at, self._turns = asyncio.get_running_loop().time(), 0
        for socket, _ in zmq.zmq_poll(self._polled, 0):
            self._due.append(self._members[socket])
        if self._due:
            self._done.clear()
            self._wake_some(0)

    def _wake_some(self, turns: int) -> None:
        """Wake the next members, when those that were woken ``turns`` turns ago are idle again."""
        self._turns += 1
        busy = False
        for one in self._woken:
            busy = busy or not one.idle
        if not busy or turns >= PATIENCE:
            turns = 0
            self._woken.clear()
            while self._due and len(self._woken) < PER_TURN:
                self._woken.append(one := self._due.popleft())
                one.wake()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some, turns + 1)
            return
        if self._turns > LONG:
            self._pause = max(self._short, self._pause / 2)
        elif self._turns <= LONG // 2:
            self._pause = min(self._longest, self._pause * 2)
        self._done.set()
