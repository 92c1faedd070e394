"""The serving process's side of a restart: it gives its listening sockets to a new process, and then its place.

See takeover.py for the messages. A new process is one that this one has started (again.py), or that was started by the
same user to serve on the same port: it connects to an abstract Unix socket named after both (``name_of``). No signal is
sent, so no wrong process can get one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.tasks import TaskSet
from gateway.restart.channel import Channel, Place, name_of, user_of

log = logging.getLogger("kvgate.restart")

SERVING = 20.0
"""Seconds from ``stopped`` to the new process's ``serving``, in which clients wait. It has loaded everything by then,
and reads files of less than a megabyte."""

WAITING = 8
"""Processes that may wait to be answered: one at a time takes over, and the others are told so."""


@dataclass(frozen=True, slots=True)
class Held:
    """The sockets of a listener, and where it was configured to listen."""

    name: str
    host: str
    port: int
    sockets: Sequence[socket.socket]


class Serving(Protocol):
    """What serves in this process."""

    def held(self) -> Sequence[Held]:
        """Its listening sockets."""

    async def pause(self) -> None:
        """Accept no more, and save what is to be kept: another process is about to go on with it."""

    async def resume(self) -> None:
        """Accept again: the other process has failed."""

    def gone_to(self, pid: int) -> None:
        """Process ``pid`` serves now, and may say so once this returns."""


class Succession:
    """Lets other processes take over from ``serving``, one at a time.

    ``successor``: the process that has the listening sockets, too; None: none has. Whoever waits in them waits for it.
    ``taken``: is set when one has taken over.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._tasks = TaskSet()
        self._doors: list[socket.socket] = []
        self.successor: int | None = None
        self.taken = asyncio.Event()

    def open(self, port: int) -> None:
        """Let processes that are to serve on ``port`` ask. If that is not possible, it is logged."""
        if not hasattr(socket, "SO_PEERCRED"):
            return
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.setblocking(False)
        try:
            door.bind(name_of(port))
            door.listen(WAITING)
        except OSError as error:
            door.close()
            log.warning("another kvgate cannot take over from this one on port %d: %s", port, error.strerror or error)
            return
        self._doors.append(door)
        asyncio.get_running_loop().add_reader(door.fileno(), self._knocked, door)

    def shut(self) -> None:
        """Let no further process ask: one that does now finds nobody here, and listens by itself. Idempotent."""
        for door in self._doors:
            asyncio.get_running_loop().remove_reader(door.fileno())
            door.close()
        self._doors.clear()

    async def close(self) -> None:
        self.shut()
        await self._tasks.close()

    async def talk(self, channel: Channel) -> bool:
        """Let the process at the other end take over, if it can; returns whether it has. Closes ``channel``."""
        with contextlib.closing(channel):
            hello = await channel.receive()
            if hello is not None and hello.say == "failed":
                log.error("process %d has not taken over: %s; this one goes on", hello.pid, hello.why)
            if hello is None or hello.say != "hello":
                return False
            if self.successor is not None:
                channel.send("busy", why=f"process {self.successor} is taking over")
                return False
            self.successor = hello.pid
            try:
                return await self._hand_over(channel, hello.pid)
            finally:
                if not self.taken.is_set():
                    self.successor = None

    async def _hand_over(self, channel: Channel, pid: int) -> bool:
        held = [(Place(one.name, one.host, one.port), each) for one in self._serving.held() for each in one.sockets]
        channel.send_sockets(held)
        paused, why = False, "it ended"
        try:
            while (message := await channel.receive(SERVING if paused else None)) is not None:
                if message.say == "stop":
                    paused = True
                    await self._serving.pause()
                    channel.send("stopped")
                elif message.say == "serving":
                    self.shut()  # its own takes the name
                    self._serving.gone_to(pid)
                    self.taken.set()
                    channel.send("yours")
                    log.info("process %d has taken over", pid)
                    return True
                elif message.say == "failed":
                    why = message.why
        except TimeoutError:
            why = f"it has not served within {SERVING:g} s"
            channel.send("late", why=why)
        finally:
            if paused and not self.taken.is_set():
                await self._serving.resume()
        log.error("process %d has not taken over: %s; this one goes on", pid, why)
        return False

    def _knocked(self, door: socket.socket) -> None:
        try:
            connected, _ = door.accept()
        except OSError:
            return
        if user_of(connected) != os.getuid():
            connected.close()
            return
        self._tasks.start(self.talk(Channel(connected)), name="let another process take over")
