"""ZMQ sockets that are closed whatever happens, and how they wake the event loop.

ZMQ_FD is edge-triggered: it becomes readable when something has changed, and any call on the socket resets it. So after
it fires, receive until nothing is left before waiting again. Source: ZMQ_FD and ZMQ_EVENTS in zmq_getsockopt(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

import zmq

from gateway.kvcache.events.decode import MAX_MESSAGE
from gateway.kvcache.events.poller import Poller

HEARTBEAT_MS = 10_000
"""A peer that answers no ping for two of these is gone: TCP alone notices a dead host after hours."""

RECONNECT_MAX_MS = 5_000
"""Longest pause between two attempts to connect; the first is 100 ms."""

QUEUE = 100
"""Messages of one engine that may wait in libzmq: some 1 MB of a busy one's, and a second of its steps. libzmq bounds
no bytes, and an engine that sends the largest messages must not fill our memory. What comes beyond waits in the engine
(vLLM keeps 100,000), or is dropped there, and then asked for."""

BATCH = 64
"""Messages that are received before connection changes are looked at."""

BATCH_BYTES = 4 * 1024 * 1024
"""Bytes likewise, the last message beside: 64 messages of a busy engine are less."""

SILENT = 5
"""Polls in a row that find nothing until the socket waits for its descriptor again: to begin again costs as much as
ten."""

_numbers = itertools.count()

# Options of libzmq as plain integers: to look up an enum's member costs as much as a call with it.
_NOBLOCK = int(zmq.NOBLOCK)


class Change(Enum):
    """A change of an engine's connection."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    UNCERTAIN = "perhaps"
    """It may have been connected a moment ago, or messages may have been lost: it is not known whose."""


class Signal:
    """As asyncio.Event, for one waiter, which clears it; with a timeout that costs no task."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, and clear it. False if it was not set within ``timeout`` seconds."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _give_up, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Inbox(Protocol):
    """One engine's messages and connection changes, in order. ``signal``: set when there is something to be received
    after there was nothing; for one reader."""

    signal: Signal

    def receive(self) -> Change | list[bytes] | None:
        """A connection change, or the frames of a message; None: there is nothing now."""


class EventSource(Protocol):
    """Where an engine's messages come from; ``str`` of it is for a log."""

    def open(self) -> contextlib.AbstractContextManager[Inbox]:
        """Listen. Raises zmq.ZMQError where an address cannot be one."""


@contextlib.contextmanager
def open_socket(kind: int) -> Iterator[zmq.Socket[bytes]]:
    """A socket of the process's one context (and its one I/O thread). A connection that brings a message larger than
    what is decoded is closed: libzmq would have to receive all of it before it could be refused."""
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
    """A second socket, on which libzmq reports changes of the connections of ``socket``."""
    # libzmq would make its name of a file descriptor, which may be used again before the old name is free.
    name = f"inproc://kvgate-monitor-{next(_numbers)}"
    monitor = socket.get_monitor_socket(events, name)
    try:
        yield monitor
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)


class MessageSocket:
    """Receives the messages of a socket. ``signal`` is set when there are some, until ``close``.

    ``poller``: polls the socket with others from the first message on, as long as messages come; between two polls
    nothing wakes the loop. None: each message does. Nothing else may send, receive or get an option on the socket: that
    would reset its descriptor.
    """

    def __init__(self, socket: zmq.Socket[bytes], signal: Signal, poller: Poller | None = None) -> None:
        self._socket = socket
        # To poll one socket takes as long as to get its ZMQ_EVENTS, of which pyzmq makes an enum's member each time.
        self._polled = [(socket, int(zmq.POLLIN))]
        self._signal = signal
        self._poller = poller
        # Whether there is a message, as libzmq said last; None: it was not asked since one was received.
        self._has_message: bool | None = None
        # The loop watches the descriptor while no message is known. Else nothing would reset it, and it would wake the
        # loop in each turn.
        self._watched = False
        self._closed = False
        self._silent = 0  # polls in a row that have found nothing
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._watch()
        self._on_readable()  # an earlier call on the socket may have reset the descriptor

    def has_message(self) -> bool:
        """Whether there is a message now."""
        self._has_message = bool(zmq.zmq_poll(self._polled, 0))
        return self._has_message

    def receive(self) -> list[bytes] | None:
        """The frames of a message; None: there is none, as far as was signalled."""
        message = self._receive()
        return None if message is None else message[1]

    def receive_some(self) -> tuple[list[list[bytes]], int, bool]:
        """As ``receive``, up to a batch of messages; their bytes; whether that was all."""
        messages: list[list[bytes]] = []
        size = 0
        while len(messages) < BATCH and size < BATCH_BYTES:
            if (message := self._receive()) is None:
                return messages, size, True
            messages.append(message[1])
            size += sum(map(len, message[1]))
        return messages, size, False

    def receive_from(self) -> tuple[int, list[bytes]] | None:
        """As ``receive``, with the file descriptor of the connection that it came on.

        Messages without one are skipped: those of ZMTP 1.0, which is what libzmq takes a connection for that does not
        greet as ZMTP does (a port scan, a TLS client).
        """
        while (message := self._receive()) is not None:
            with contextlib.suppress(zmq.ZMQError):
                return int(message[0].get(zmq.SRCFD)), message[1]
        return None

    def poll(self) -> bool:
        """False, once some polls in a row have found nothing: the descriptor is watched again."""
        if self.check():
            return True
        self._silent += 1
        if self._silent < SILENT:
            return True
        self._watch()
        return False

    def check(self) -> bool:
        there = self._has_message = bool(zmq.zmq_poll(self._polled, 0))
        if there:
            self._silent = 0
            self._signal.set()
        return there

    def close(self) -> None:
        """Set the signal no more; harmless when repeated. The socket stays open."""
        self._closed = True
        self._unwatch()
        if self._poller is not None:
            self._poller.remove(self)

    def _watch(self) -> None:
        """Have the loop woken by the next message: libzmq has said that there is none."""
        if not self._watched and not self._closed:
            self._watched = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._descriptor)

    def _on_readable(self) -> None:
        if not self.has_message():  # it fires for other reasons, too, and to have asked has reset it
            return
        self._unwatch()
        self._silent = 0
        if self._poller is not None:
            self._poller.add(self)
        self._signal.set()

    def _receive(self) -> tuple[zmq.Frame, list[bytes]] | None:
        """The first frame of a message, and all of them as bytes: libzmq has the whole message, or nothing."""
        if self._has_message is None or not (self._has_message or self._watched):
            self.has_message()  # costs a third of the exception that says that there is none
        if self._has_message:
            self._has_message = None
            first = frame = self._socket.recv(_NOBLOCK, copy=False)
            frames = [frame.bytes]
            while frame.more:
                frame = self._socket.recv(_NOBLOCK, copy=False)
                frames.append(frame.bytes)
            return first, frames
        if self._poller is None:
            self._watch()
        return None
