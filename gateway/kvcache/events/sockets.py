"""ZMQ sockets that are closed whatever happens, and how they wake the event loop.

ZMQ_FD is edge-triggered: it becomes readable when something has changed, and any call on the socket resets it. So after
it fires, receive until nothing is left before waiting again. Source: ZMQ_FD and ZMQ_EVENTS in zmq_getsockopt(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
from collections.abc import Iterator
from enum import Enum
from socket import AF_INET, AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET
from socket import socket as stream_socket
from typing import Protocol, TypeAlias

import zmq

from gateway.core.signal import Signal
from gateway.kvcache.events.decode import MAX_MESSAGE

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

BACKLOG = 100
"""Connections of engines that may wait to be accepted: libzmq's own default."""

_numbers = itertools.count()

# Options of libzmq as plain integers: to look up an enum's member costs as much as a call with it.
_NOBLOCK = int(zmq.NOBLOCK)

Polled: TypeAlias = list[tuple[zmq.Socket[bytes], int]]
"""One socket, and what is asked of it. To poll one takes as long as to get its ZMQ_EVENTS, of which pyzmq makes an
enum's member each time."""


class Change(Enum):
    """A change of an engine's connection."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    UNCERTAIN = "perhaps"
    """It may have been connected a moment ago, or messages may have been lost: it is not known whose."""


class Inbox(Protocol):
    """One engine's messages and connection changes, in order. ``signal``: set when there is something to be received
    after there was nothing; for one reader. ``paused``: the reader receives nothing for now."""

    signal: Signal
    paused: bool

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


def bind_shared(socket: zmq.Socket[bytes], address: str, *, beside: bool) -> None:
    """Bind to ``tcp://HOST:PORT``, alone, and let another process of this user join then; ``beside``: join one that
    may be there. Connections go to either, until one of them closes. An interface's name is bound alone and stays so.
    Raises zmq.ZMQError."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    host = "::" if host == "*" else host.strip("[]")
    try:
        family = AF_INET if ipaddress.ip_address(host).version == 4 else AF_INET6
        number = int(port)
    except ValueError:
        socket.bind(address)
        return
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(stream_socket(family))
        except OSError:  # a system without IPv6
            socket.bind(address)
            return
        try:
            opened.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            if family == AF_INET6:
                opened.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)  # as libzmq has it
            if beside:
                opened.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
            opened.bind((host, number))
            opened.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
            opened.setblocking(False)
            opened.listen(BACKLOG)
        except OSError as error:
            raise zmq.ZMQError(error.errno) from error
        socket.setsockopt(zmq.USE_FD, opened.fileno())
        socket.bind(address if number else f"{address.rpartition(':')[0]}:{opened.getsockname()[1]}")
        opened.detach()  # libzmq closes it


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


class WatchedSocket:
    """A socket whose descriptor the loop watches. ``signal`` is set when messages have come, until ``close``.

    Nothing else may send, receive or get an option on the socket: that would reset its descriptor.
    """

    def __init__(self, socket: zmq.Socket[bytes], signal: Signal) -> None:
        self._socket = socket
        self._polled = [(socket, int(zmq.POLLIN))]
        self._signal = signal
        # The loop watches the descriptor while no message is known. Else nothing would reset it, and it would wake the
        # loop in each turn.
        self._watched = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._watch()
        self._on_readable()  # an earlier call on the socket may have reset the descriptor

    def receive_some(self) -> tuple[list[list[bytes]], int]:
        """As the function. If there was nothing, the next message sets the signal."""
        received = receive_some(self._polled)
        if not received[0]:
            self._watch()
        return received

    def close(self) -> None:
        """Set the signal no more; harmless when repeated. The socket stays open."""
        self._closed = True
        self._unwatch()

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
        if zmq.zmq_poll(self._polled, 0):  # it fires for other reasons, too, and to have asked has reset it
            self._unwatch()
            self._signal.set()


def receive(socket: zmq.Socket[bytes]) -> tuple[zmq.Frame, list[bytes]]:
    """The message that has come: its first frame, and all of them as bytes. Raises zmq.Again if there is none."""
    first = frame = socket.recv(_NOBLOCK, copy=False)
    frames = [frame.bytes]
    while frame.more:  # libzmq has the whole message, or nothing
        frame = socket.recv(_NOBLOCK, copy=False)
        frames.append(frame.bytes)
    return first, frames


def receive_some(polled: Polled) -> tuple[list[list[bytes]], int]:
    """The frames of up to a batch of messages that have come, and their bytes."""
    messages: list[list[bytes]] = []
    size, socket = 0, polled[0][0]
    # To poll costs a third of the exception that says that there is no message.
    while len(messages) < BATCH and size < BATCH_BYTES and zmq.zmq_poll(polled, 0):
        frames = receive(socket)[1]
        messages.append(frames)
        size += sum(map(len, frames))
    return messages, size
