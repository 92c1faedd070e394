"""ZMQ sockets that are closed whatever happens, and what is heard on them: messages, and changes of a connection.

A socket has one file descriptor, which libzmq makes readable when something has changed, and quiet again as soon as it
is asked for anything: what came is then there to be taken, and not told again. So whoever waits has taken all before.
Nor is anything told that comes while something is left to be taken.
Source: ZMQ_FD and ZMQ_EVENTS in zmq_getsockopt(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

import zmq

from gateway.kvcache.events import MAX_MESSAGE
from gateway.kvcache.pace import Pace

HEARTBEAT_MS = 10_000
"""A peer that answers no ping for two of these is gone: TCP alone notices a dead host after hours."""

RECONNECT_MAX_MS = 5_000
"""Longest pause between two attempts to connect; they begin at 100 ms."""

QUEUE = 100
"""Messages of one engine that may wait in libzmq: some 1 MB of a busy one's, and a second of its steps. libzmq bounds
no bytes, and an engine that sends the largest messages shall not fill our memory. What comes beyond waits in the
engine (vLLM keeps 100,000), or is dropped there, and then asked for."""

AT_ONCE = 64
"""Messages that are received before it is asked whether the connection has changed meanwhile."""

AT_ONCE_BYTES = 4 * 1024 * 1024
"""Bytes likewise, the last message beside: 64 messages of a busy engine are less."""

SILENT = 5
"""Looks at a socket that find nothing until it is not looked at any more: to begin again costs as much as ten."""

_numbers = itertools.count()

# Of libzmq, as plain numbers: looking an enum's member up costs as much as a call with it.
_EVENTS = int(zmq.EVENTS)
_NOBLOCK = int(zmq.NOBLOCK)
_POLLIN = int(zmq.POLLIN)


class Change(Enum):
    """What may happen to an engine's connection."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    PERHAPS = "perhaps"
    """It may have been connected a moment ago, or messages may have been lost: nobody can tell whose."""


class Bell:
    """Wakes the one who waits for it. A ring that nobody waits for is kept for the next who does."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        """False if it was not rung within ``timeout`` seconds. Returns at once if it was rung since the last time."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _give_up, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        rung, self._rung = self._rung, False
        return rung


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Inlet(Protocol):
    """One engine's messages, and what happens to its connection, in order. ``bell``: rung when there is something to
    be taken after there was nothing; for one reader."""

    bell: Bell

    def take(self) -> Change | list[bytes] | None:
        """What has come, if there is something now."""


class EventSource(Protocol):
    """Where an engine's messages come from; ``str`` of it is for a log."""

    def open(self) -> contextlib.AbstractContextManager[Inlet]:
        """Listen. Raises zmq.ZMQError where an address cannot be one."""


@contextlib.contextmanager
def open_socket(kind: int) -> Iterator[zmq.Socket[bytes]]:
    """A socket of the process's one context (and its one I/O thread). A connection that brings a larger message than is
    decoded is closed: libzmq would have received all of it before it can be refused."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.maxmsgsize = MAX_MESSAGE
    socket.linger = 0
    socket.ipv6 = True
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2 * HEARTBEAT_MS)
    socket.reconnect_ivl = 100
    socket.reconnect_ivl_max = RECONNECT_MAX_MS
    try:
        yield socket
    finally:
        socket.close()


@contextlib.contextmanager
def open_monitor(
    socket: zmq.Socket[bytes], events: int = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
) -> Iterator[zmq.Socket[bytes]]:
    """Another socket, on which ``socket`` tells that it is connected or no longer."""
    # libzmq's own name for it is made of a file descriptor, which may be taken again before the old one is gone.
    name = f"inproc://kvgate-monitor-{next(_numbers)}"
    monitor = socket.get_monitor_socket(events, name)
    try:
        yield monitor
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)


class Ready:
    """What a socket has received, for the loop that runs: ``bell`` is rung when there is something, until ``close``.

    ``pace``: looked at with others from the first message on, as long as messages come, and nobody is woken between two
    looks. Without it, as soon as something comes. Nobody else may send, receive or ask for an option on the socket from
    then on: that would quieten its descriptor.
    """

    def __init__(self, socket: zmq.Socket[bytes], bell: Bell, pace: Pace | None = None) -> None:
        self._socket = socket
        self._bell = bell
        self._pace = pace
        # Whether there is a message, as libzmq has said; None: it was not asked since the last was received.
        self._some: bool | None = None
        # The loop hears the descriptor: nothing is there that we know of. While something is, and while it is looked at
        # anyway, nobody quietens it, and it would wake the loop in each turn.
        self._heard = False
        self._closed = False
        self._silent = 0  # looks in a row that have found nothing
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._hear()
        self._signalled()  # what was done with the socket before us may have taken a signal

    def is_there(self) -> bool:
        """Whether there is a message now."""
        self._some = bool(int(self._socket.getsockopt(_EVENTS)) & _POLLIN)
        return self._some

    def take(self) -> list[bytes] | None:
        """A message, if one is there, as far as was signalled."""
        frame = self._first()
        return None if frame is None else self._whole(frame)

    def take_some(self) -> tuple[list[list[bytes]], int, bool]:
        """As ``take``, as many messages as are taken at once; their bytes; whether that was all."""
        messages: list[list[bytes]] = []
        size = 0
        while len(messages) < AT_ONCE and size < AT_ONCE_BYTES:
            if (frame := self._first()) is None:
                return messages, size, True
            messages.append(self._whole(frame))
            size += sum(map(len, messages[-1]))
        return messages, size, False

    def take_from(self) -> tuple[int, list[bytes]] | None:
        """As ``take``, with the file descriptor of the connection that it came on.

        Messages of which that is not known are passed over: libzmq has none for those of ZMTP 1.0, which is what it
        takes a connection for that does not greet as ZMTP does (a port scan, a TLS client).
        """
        while (frame := self._first()) is not None:
            frames = self._whole(frame)
            with contextlib.suppress(zmq.ZMQError):
                return int(frame.get(zmq.SRCFD)), frames
        return None

    def look(self) -> bool:
        """One that is silent for some looks is not looked at any more: its descriptor is heard again."""
        if self.peek():
            return True
        self._silent += 1
        if self._silent < SILENT:
            return True
        self._hear()
        return False

    def peek(self) -> bool:
        there = self.is_there()
        if there:
            self._silent = 0
            self._bell.ring()
        return there

    def close(self) -> None:
        """Nobody is told any more; harmless when repeated. The socket stays open."""
        self._closed = True
        self._be_deaf()
        if self._pace is not None:
            self._pace.leave(self)

    def _hear(self) -> None:
        """Have the loop woken by the next message: libzmq has said that there is none."""
        if not self._heard and not self._closed:
            self._heard = True
            self._loop.add_reader(self._descriptor, self._signalled)

    def _be_deaf(self) -> None:
        if self._heard:
            self._heard = False
            self._loop.remove_reader(self._descriptor)

    def _signalled(self) -> None:
        if not self.is_there():  # it has other reasons to signal, and to have asked has quietened it
            return
        self._be_deaf()
        self._silent = 0
        if self._pace is not None:
            self._pace.join(self)
        self._bell.ring()

    def _first(self) -> zmq.Frame | None:
        """The first frame of a message, if one is there."""
        if self._some is None or not (self._some or self._heard):
            self.is_there()  # a third of what an exception costs that says there is none
        if self._some:
            self._some = None
            return self._socket.recv(_NOBLOCK, copy=False)
        if self._pace is None:
            self._hear()
        return None

    def _whole(self, frame: zmq.Frame) -> list[bytes]:
        """The message that begins with ``frame``: libzmq has all of it, or nothing."""
        frames = [frame.bytes]
        while frame.more:
            frame = self._socket.recv(_NOBLOCK, copy=False)
            frames.append(frame.bytes)
        return frames
