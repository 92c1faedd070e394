"""Messages between two processes of kvgate of one user, one of which takes over from the other.

Each is one packet on a Unix socket: JSON, beside which descriptors may come. What a version does not know in it is left
out, and what it does not get has a default, since the two may be of different versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Sequence

import msgspec

VERSION = 1
"""Of the messages."""

LARGEST = 64 * 1024
"""Bytes of a packet."""

MOST = 250
"""Descriptors beside one packet: Linux lets 253 through. More sockets are handed over in several messages."""

_UCRED = struct.Struct("3i")


class Place(msgspec.Struct, frozen=True):
    """Of one socket, in the order of the descriptors. ``name``: of the listener. ``host``, ``port``: as configured."""

    name: str
    host: str
    port: int


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """``say``: what it is about; see takeover.py and succession.py. ``pid``: of the sender. ``why``: for people.
    ``places``: of the sockets beside it. ``more``: another message with sockets follows."""

    say: str
    version: int = VERSION
    pid: int = 0
    why: str = ""
    places: tuple[Place, ...] = ()
    more: bool = False


class Channel:
    """One end. ``opened``: a connected ``SOCK_SEQPACKET``, which belongs to the channel from now on."""

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        self._socket = opened
        self.received: list[socket.socket] = []
        """What came beside the last message; the reader takes it, or it is closed with the next message."""

    def send(self, say: str, *, why: str = "") -> bool:
        """False where the other end is gone."""
        return self._send(Message(say, pid=os.getpid(), why=why[:1000]), ())

    def send_sockets(self, held: Sequence[tuple[Place, socket.socket]]) -> None:
        """Say ``sockets``, with copies of these beside it, in as many messages as it takes. Where one cannot be sent,
        the other end misses it, and gives up."""
        for start in range(0, max(1, len(held)), MOST):
            part = held[start : start + MOST]
            places = tuple(place for place, _ in part)
            message = Message("sockets", pid=os.getpid(), places=places, more=len(held) > start + MOST)
            if not self._send(message, [one.fileno() for _, one in part]):
                return

    async def receive(self, seconds: float | None = None) -> Message | None:
        """The next message; None where the other end is gone, or is none of kvgate. Raises TimeoutError if there is
        none within so many seconds."""
        self._drop()
        late = False
        while True:
            try:
                data, found, _, _ = socket.recv_fds(self._socket, LARGEST, MOST, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                if late:
                    raise TimeoutError from None
                late = not await self._readable(seconds)
                continue
            except ConnectionResetError:  # it left without reading all: what it said before comes next
                continue
            except OSError:
                return None
            self.received = _sockets(found)
            try:
                return msgspec.json.decode(data, type=Message) if data else None
            except msgspec.MsgspecError:
                return None

    def close(self) -> None:
        """Idempotent."""
        self._drop()
        self._socket.close()

    def _send(self, message: Message, beside: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._socket, [msgspec.json.encode(message)], beside)
        except OSError:
            return False
        return True

    def _drop(self) -> None:
        for one in self.received:
            one.close()
        self.received = []

    async def _readable(self, seconds: float | None) -> bool:
        """Wait until there is something to read; False if that was not within so many seconds."""
        loop, number = asyncio.get_running_loop(), self._socket.fileno()
        came = asyncio.Event()
        loop.add_reader(number, came.set)
        try:
            async with asyncio.timeout(seconds):
                await came.wait()
        except TimeoutError:
            return False
        finally:
            with contextlib.suppress(ValueError):
                loop.remove_reader(number)
        return True


def user_of(connected: socket.socket) -> int:
    """The user of the process at the other end, as its kernel says."""
    _, user, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(user)


def name_of(port: int) -> str:
    """Where the kvgate of this user that serves clients on ``port`` can be asked: an abstract Unix socket. Like a port
    it belongs to the network namespace, and ends with its process: no file is to be found, protected or cleaned up."""
    return f"\0kvgate/{os.getuid()}/{port}"


def _sockets(descriptors: Sequence[int]) -> list[socket.socket]:
    """What has come beside a message; what is no socket is closed."""
    sockets = []
    for number in descriptors:
        try:
            sockets.append(socket.socket(fileno=number))
        except OSError:
            os.close(number)
    return sockets
