"""One request to an engine's replay socket, and what can go wrong with its answer.

The engine's ROUTER drops silently what a slow reader leaves, END marker included, so an answer counts as whole only if
no number is missing and the marker has come. So it is received as fast as it comes, and waits here: what is made of it
takes longer. Frames are read from their end: engines of before 0.32 send no topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

import zmq

from gateway.framework import TaskSet
from gateway.kvcache.sockets import AT_ONCE, Bell, Ready, open_socket

END = b"\xff" * 8
"""The sequence of an answer's last message."""

QUEUE = 1_000
"""Messages that may wait in libzmq: as many come in some 20 ms, and the loop's turns are shorter."""

WAITING = 256 * 1024 * 1024
"""Bytes that may wait here, the last 64 messages beside: twice a full buffer of vLLM's (10,000 messages of some 10 KB).
What an engine says beyond is asked for again from where we are."""

MAX_MESSAGES = 100_000
"""Of one answer: ten times as many as vLLM keeps by default (``buffer_steps``). Who says more has no end."""


class ReplayBroken(Exception):
    """The answer has a hole, or stopped before its end, or nobody can be asked. What came before is good."""


class ReplayEndless(ReplayBroken):
    """The answer goes on beyond all that an engine can have kept: to ask again would bring no end either."""


def sequence_of(frames: list[bytes]) -> int | None:
    """The number of a message; None if it is none."""
    return int.from_bytes(frames[-2], "big") if len(frames) >= 2 and len(frames[-2]) == 8 else None


async def replay(address: str, start: int, timeout: float) -> AsyncGenerator[tuple[int, bytes], None]:
    """(sequence, payload) of every message from ``start`` on that the engine still has, without a gap between them.

    The first may be later than ``start``: then the engine has forgotten what came before. ``timeout``: seconds without
    anything. Others have a turn at least every ``AT_ONCE`` messages. Raises ReplayBroken.
    """
    expected = None
    async with contextlib.aclosing(_received(address, start, timeout)) as messages:
        async for frames in messages:
            sequence = sequence_of(frames)
            if len(frames) >= 2 and frames[-2] == END:
                return
            if sequence is None or sequence < (start if expected is None else expected):
                continue
            if expected is not None and sequence > expected:
                raise ReplayBroken(f"messages {expected} to {sequence - 1} are missing")
            expected = sequence + 1
            yield sequence, frames[-1]


async def _received(address: str, start: int, timeout: float) -> AsyncGenerator[list[bytes], None]:
    """All that comes. Raises ReplayBroken."""
    count = 0
    with open_socket(zmq.DEALER) as dealer:
        dealer.rcvhwm = QUEUE
        try:
            dealer.connect(address)
        except zmq.ZMQError as error:
            raise ReplayBroken(str(error)) from error
        dealer.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)  # the first always has room
        backlog, tasks = _Backlog(dealer), TaskSet()
        tasks.start(backlog.fill(), name=f"replay from {address}")
        try:
            while True:
                while backlog.messages:
                    count += 1
                    if count > MAX_MESSAGES:
                        raise ReplayEndless(f"it has no end: more than {MAX_MESSAGES} messages came")
                    yield backlog.next()
                    if count % AT_ONCE == 0:
                        await asyncio.sleep(0)
                if backlog.full:
                    raise ReplayBroken(f"more than {WAITING} bytes came before what is in them was applied")
                if not await backlog.bell.wait(timeout):
                    raise ReplayBroken(f"nothing came for {timeout:g} seconds")
        finally:
            await tasks.close()


class _Backlog:
    """What came and was not read yet. ``bell``: rung when there is more, or there will be none since it is ``full``."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.bell = Bell()
        self.full = False
        self._bytes = 0
        self._socket = socket

    def next(self) -> list[bytes]:
        frames = self.messages.popleft()
        self._bytes -= sum(map(len, frames))
        return frames

    async def fill(self) -> None:
        """Receive until it is full, and then close the socket: what it has received goes with it."""
        come = Bell()
        ready = Ready(self._socket, come)
        try:
            while self._bytes <= WAITING:
                messages, size, was_all = ready.take_some()
                if messages:
                    self.messages += messages
                    self._bytes += size
                    self.bell.ring()
                if was_all:
                    await come.wait()
                else:
                    await asyncio.sleep(0)
            self.full = True
            self.bell.ring()
        finally:
            ready.close()
            if self.full:
                self._socket.close()
