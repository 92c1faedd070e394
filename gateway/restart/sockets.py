"""Listening sockets that outlive the process that opened them.

A port is bound by one process alone, so that a second program that wants it is told so. Then the socket is opened to
others of the same user that ask for ``SO_REUSEPORT``: further workers, and a successor that listens on another address
of the port.

A socket that is closed resets the connections that wait in it to be accepted. So who closes the last one first lets no
new connection begin (``let_none_begin``), waits for those that have begun, and takes them out (``accept_waiting``).
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Iterator

BEGINNING = 0.1
"""Seconds in which a connection that has begun gets its last packet: more than a round trip in a data centre, or to a
balancer in front of it."""

_ATTACH_FILTER = 26
"""``SO_ATTACH_FILTER`` (asm-generic/socket.h), which Python does not name."""

_NO_SYN = (
    (0x30, 0, 0, 13),  # load the TCP header's flags
    (0x54, 0, 0, 0x02),  # only SYN of them
    (0x15, 1, 0, 0),  # is it not set? Then skip the next
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # pass
)
"""A classic BPF program, which the kernel runs for each packet that comes to the listening socket."""


def open_sockets(host: str, port: int, *, backlog: int, shared: bool = False) -> list[socket.socket]:
    """Listen on ``port`` of every address of ``host``; empty: of all interfaces. ``port`` 0: a free one for each.

    ``shared``: beside other sockets of this user that listen there already. Raises OSError.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as stack:
        opened = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = stack.enter_context(socket.socket(family, kind, protocol))
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(address)
            with contextlib.suppress(OSError):  # an old kernel: then nobody else may join
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.listen(backlog)
            one.setblocking(False)
        stack.pop_all()
    return opened


def let_none_begin(listening: socket.socket) -> bool:
    """Let no new connection begin, for all who share the socket. Those that have begun are completed and can be
    accepted. A client that tries meanwhile tries again after a second, and is refused then, or served by whoever
    listens by then. False where the system cannot do that."""
    if sys.platform != "linux":
        return False
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _NO_SYN)
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HL", len(_NO_SYN), ctypes.addressof(held))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    except OSError:
        return False
    return True


def accept_waiting(listening: socket.socket) -> Iterator[socket.socket]:
    """The connections that wait to be accepted; ends when there are none. ``listening`` does not block."""
    while True:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, OSError):
            return
        connection.setblocking(False)
        yield connection


def is_listening(given: socket.socket) -> bool:
    """Whether it is a listening stream socket."""
    try:
        return given.type == socket.SOCK_STREAM and bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False
