"""Asks an engine's replay socket for its history, once, and notices what can go wrong with the answer.

The engine's ROUTER silently drops what a slow reader leaves, END marker included, so that an answer is complete only if
no number is missing and the marker has come. So messages are received as fast as they come, and wait here: to apply
them takes longer. Frames are read from their end: engines of before 0.32 send no topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

import zmq

from gateway.core.signal import Signal
from gateway.core.tasks import TaskSet
from gateway.kvcache.events.sockets import BATCH, WatchedSocket, open_socket

END = b"\xff" * 8
"""The sequence number of an answer's last message."""

QUEUE = 1_000
"""Messages that may wait in libzmq: as many come in some 20 ms, and the loop's turns are shorter."""

MAX_BACKLOG = 256 * 1024 * 1024
"""Bytes that may wait here, the last 64 messages beside: twice a full buffer of vLLM's (10,000 messages of some 10 KB).
What an engine sends beyond is asked for again, from the last message that was applied."""

MAX_MESSAGES = 100_000
"""Of one answer: ten times as many as vLLM keeps by default (``buffer_steps``). A longer answer has no end."""


class ReplayBroken(Exception):
    """The answer has a hole, or stopped before its end, or nothing answers. The messages before are good."""


class ReplayEndless(ReplayBroken):
    """The answer goes on beyond all that an engine can have kept: to ask again would bring no end either."""


def sequence_of(frames: list[bytes]) -> int | None:
    """The sequence number of a message; None: it has none."""
    return int.from_bytes(frames[-2], "big") if len(frames) >= 2 and len(frames[-2]) == 8 else None


async def replay(address: str, start: int, timeout: float) -> AsyncGenerator[tuple[int, bytes], None]:
    """(sequence, payload) of every message from ``start`` on that the engine still has, without a gap between them.

    The first may be later than ``start``: then the engine has forgotten what came before. ``timeout``: seconds without
    any message. Other tasks have a turn at least every ``BATCH`` messages. Raises ReplayBroken.
    """
    expected = None
    async with contextlib.aclosing(_messages(address, start, timeout)) as messages:
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


async def _messages(address: str, start: int, timeout: float) -> AsyncGenerator[list[bytes], None]:
    """All messages of the answer. Raises ReplayBroken."""
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
                    if count % BATCH == 0:
                        await asyncio.sleep(0)
                if backlog.full:
                    raise ReplayBroken(f"more than {MAX_BACKLOG} bytes came before what is in them was applied")
                if not await backlog.signal.wait(timeout):
                    raise ReplayBroken(f"nothing came for {timeout:g} seconds")
        finally:
            await tasks.close()


class _Backlog:
    """Messages that were received and not read yet. ``signal``: set when there are more, or none will come since it is
    ``full``."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.signal = Signal()
        self.full = False
        self._bytes = 0
        self._socket = socket

    def next(self) -> list[bytes]:
        frames = self.messages.popleft()
        self._bytes -= sum(map(len, frames))
        return frames

    async def fill(self) -> None:
        """Receive until it is full, and then close the socket: what libzmq has received goes with it."""
        come = Signal()
        ready = WatchedSocket(self._socket, come)
        try:
            while self._bytes <= MAX_BACKLOG:
                messages, size = ready.receive_some()
                if not messages:
                    await come.wait()
                    continue
                self.messages += messages
                self._bytes += size
                self.signal.set()
                await asyncio.sleep(0)
            self.full = True
            self.signal.set()
        finally:
            ready.close()
            if self.full:
                self._socket.close()
