"""ZMQ sockets that are closed whatever happens, and what a socket says of its connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from typing import cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

HEARTBEAT_MS = 10_000
"""A peer that answers no ping for two of these is gone: TCP alone notices a dead host after hours."""

RECONNECT_MAX_MS = 5_000
"""Longest pause between two attempts to connect; they begin at 100 ms."""

_numbers = itertools.count()


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
def open_monitor(socket: zmq.asyncio.Socket) -> Iterator[zmq.asyncio.Socket]:
    """Another socket, on which ``socket`` tells that it is connected or no longer; see ``is_connected``."""
    # libzmq's own name for it is made of a file descriptor, which may be taken again before the old one is gone.
    name = f"inproc://kvgate-monitor-{next(_numbers)}"
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED, name)
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
