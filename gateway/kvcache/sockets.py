"""ZMQ sockets that are closed whatever happens, and what is heard on them: messages, and changes of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

HEARTBEAT_MS = 10_000
"""A peer that answers no ping for two of these is gone: TCP alone notices a dead host after hours."""

RECONNECT_MAX_MS = 5_000
"""Longest pause between two attempts to connect; they begin at 100 ms."""

QUEUE = 1_000
"""Messages that may wait in a subscriber: some 10 MB of a busy engine's, and more seconds than a replay takes. What
comes beyond waits in the engine, or is dropped there, and then asked for."""

_numbers = itertools.count()


class Change(Enum):
    """What may happen to an engine's connection."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    PERHAPS = "perhaps"
    """It may have been connected a moment ago, or messages may have been lost: nobody can tell whose."""


class Inlet(Protocol):
    """One engine's messages, and what happens to its connection, in order."""

    def take(self) -> Change | list[bytes] | None:
        """What has come, if there is something now."""

    def some(self) -> Sequence[asyncio.Future[Any]]:
        """One of them is done when there is something, or was; takes nothing."""


class EventSource(Protocol):
    """Where an engine's messages come from; ``str`` of it is for a log."""

    def open(self) -> contextlib.AbstractContextManager[Inlet]:
        """Listen. Raises zmq.ZMQError where an address cannot be one."""


@contextlib.contextmanager
def open_socket(kind: int) -> Iterator[zmq.asyncio.Socket]:
    """A socket of the process's one context (and its one I/O thread)."""
    socket = zmq.asyncio.Context.instance().socket(kind)
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
    socket: zmq.asyncio.Socket, events: int = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
) -> Iterator[zmq.asyncio.Socket]:
    """Another socket, on which ``socket`` tells that it is connected or no longer; see ``is_connected``."""
    # libzmq's own name for it is made of a file descriptor, which may be taken again before the old one is gone.
    name = f"inproc://kvgate-monitor-{next(_numbers)}"
    monitor = socket.get_monitor_socket(events, name)
    try:
        yield monitor
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)


class Ready:
    """What a socket has received, without a turn of the loop for each message: some of them come by the thousand."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._now: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
        self._some: asyncio.Future[int] | None = None

    def take(self) -> list[bytes] | None:
        """A message, if there is one now."""
        try:
            return self._now.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def take_from(self) -> tuple[int, list[bytes]] | None:
        """As ``take``, with the file descriptor of the connection that it came on.

        Messages of which that is not known are passed over: libzmq has none for those of ZMTP 1.0, which is what it
        takes a connection for that does not greet as ZMTP does (a port scan, a TLS client).
        """
        while True:
            try:
                first = self._now.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            rest = self._now.recv_multipart() if first.more else []
            with contextlib.suppress(zmq.ZMQError):
                return int(first.get(zmq.SRCFD)), [first.bytes, *rest]

    def some(self) -> asyncio.Future[int]:
        """Is done when there is a message, or was one; takes none."""
        if self._some is None or self._some.done():
            self._some = cast("asyncio.Future[int]", self._socket.poll())
        return self._some

    def close(self) -> None:
        """Nobody waits any more. The socket stays open."""
        if self._some is not None:
            self._some.cancel()


def is_connected(frames: list[bytes]) -> bool:
    """What a monitor's message says."""
    return bool(parse_monitor_message(frames)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)


@dataclass(frozen=True, slots=True)
class Subscription:
    """An engine that binds: we connect to ``address``, and hear the topics that begin with ``topic``."""

    address: str
    topic: str = ""

    @contextlib.contextmanager
    def open(self) -> Iterator[Inlet]:
        with open_socket(zmq.SUB) as subscriber, open_monitor(subscriber) as monitor:
            subscriber.rcvhwm = QUEUE
            subscriber.setsockopt(zmq.SUBSCRIBE, self.topic.encode())
            subscriber.connect(self.address)
            messages, changes = Ready(subscriber), Ready(monitor)
            try:
                yield _Connection(messages, changes)
            finally:
                messages.close()
                changes.close()

    def __str__(self) -> str:
        return self.address


class _Connection:
    """The only connection of a subscriber. Its changes come before what is heard on it."""

    def __init__(self, messages: Ready, changes: Ready) -> None:
        self._messages = messages
        self._changes = changes

    def take(self) -> Change | list[bytes] | None:
        if change := self._changes.take():
            return Change.CONNECTED if is_connected(change) else Change.DISCONNECTED
        return self._messages.take()

    def some(self) -> Sequence[asyncio.Future[Any]]:
        return self._messages.some(), self._changes.some()
