"""A worker's side of its parent: it says that it lives and how far it is, and hears when to serve and when to end.

A worker whose parent is gone ends, too, as at SIGTERM: nobody would notice when it fails, and the next service could
not have its port.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from gateway import __version__
from gateway.config.document import text_of
from gateway.core.files import replace_file
from gateway.errors import ConfigError
from gateway.sharing.seat import Seat
from gateway.workers import words
from gateway.workers.channel import Channel

log = logging.getLogger("kvgate.workers")

PARENT = "KVGATE_PARENT"
"""The environment variable with the descriptor of the channel to the parent."""

PORTS = "KVGATE_PORTS"
"""The environment variable with the descriptors of all workers' sockets for clients: those of one worker with spaces
between them, and semicolons between workers."""

CONFIG, WANTED = "plugins.yaml", "wanted.yaml"
"""Files in the private directory: the text of the configuration in force, and of one that is to be."""


def digest(text: str) -> str:
    """Tells one text of a configuration from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def admin_socket(directory: str | Path, number: int) -> str:
    """The path of the Unix socket on which a worker serves its admin routes."""
    return f"{directory}/admin.{number}"


def left_figures(directory: str | Path, pid: int) -> Path:
    """Where a worker that ends in order leaves its last metrics."""
    return Path(directory) / f"figures.{pid}"


class Post:
    """``seat``: this worker's. ``end``: of the channel to its parent. ``ports``: descriptors of the sockets on which
    each worker serves clients, by number."""

    def __init__(self, seat: Seat, end: socket.socket, ports: Sequence[Sequence[int]] = ()) -> None:
        self.seat = seat
        self._ports = ports
        self._file = CONFIG
        self._digest = ""
        self._channel = Channel(end, self._heard, self._orphaned)
        self._going = asyncio.Event()
        self.told: frozenset[str] = frozenset((words.KEPT,))
        """How to end (``PATIENT``, ``KEPT``, ``TAKEN``). Without its parent's word: its successor needs the socket."""
        self.patience_over = asyncio.Event()
        """Set when the parent has said how to end, and that no more are to be accepted."""
        self._again = False
        self._pauses: asyncio.Queue[bool] = asyncio.Queue()
        self._covers: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._beating: asyncio.TimerHandle | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Post | None:
        """None: this process has no parent. Raises ConfigError if it is told a wrong one; OtherVersion."""
        try:
            seat = Seat.from_environment(environ, __version__)
            if seat is None:
                return None
            ports = [[int(number) for number in each.split()] for each in environ.get(PORTS, "").split(";")]
            return cls(seat, socket.socket(fileno=int(environ.get(PARENT, "-1"))), ports)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{error}: this is a worker without its parent") from error

    def read_text(self) -> str:
        """The configuration's text that this worker is to use: the one in force, and once it could serve the wanted
        one. Raises ConfigError."""
        text = text_of(Path(self.seat.directory) / self._file)
        if self._file == CONFIG:
            self._digest = digest(text)
        return text

    def open(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Begin to hear the parent, which sets ``stop`` and ``hurry``, and to say that the loop runs."""
        self._stop, self._hurry = stop, hurry
        self._channel.open()
        self._beat()

    async def may_serve(self) -> bool:
        """Say that all is loaded, and wait for the parent's word. Whether another service has left files to this one
        since they were read."""
        self._file = WANTED
        self._channel.say(f"{words.READY}-{self._digest}")
        await self._going.wait()
        return self._again

    async def pause_asked(self) -> bool:
        """Wait for the parent's word to accept no more (True), or to go on."""
        return await self._pauses.get()

    def paused(self) -> None:
        """Say that no more is accepted."""
        self._channel.say(words.PAUSED)

    async def cover_asked(self) -> tuple[int, bool]:
        """Wait for the parent's word to accept the clients of another worker, too (its number, True), or no more."""
        return await self._covers.get()

    def listening(self, number: int | None = None) -> list[socket.socket]:
        """The sockets on which to accept clients, for the caller to close: the parent keeps them, too. ``number``: of
        another worker."""
        ports = self._ports[self.seat.number if number is None else number]
        return [socket.socket(fileno=os.dup(descriptor)) for descriptor in ports]

    @property
    def admin_socket(self) -> str:
        return admin_socket(self.seat.directory, self.seat.number)

    def serving(self) -> None:
        """Say that clients are served."""
        self._channel.say(words.SERVING)

    def leaving(self) -> None:
        """Say that no more clients are accepted. All sockets for clients are closed: as long as one process has one
        open, clients come to it, or nobody else can open the port."""
        for descriptor in {*itertools.chain(*self._ports)}:
            os.close(descriptor)
        self._ports = [() for _ in self._ports]
        self._channel.say(words.LEAVING)

    async def leave(self, render: Callable[[], Awaitable[tuple[bytes, str]]]) -> None:
        """Leave the last metrics, which ``render`` makes, to the parent."""
        text, _ = await render()
        left = left_figures(self.seat.directory, os.getpid())
        try:
            replace_file(left, text)
        except OSError as error:  # a parent that has ended has removed the directory
            log.info("the last metrics are lost: %s", error)

    def close(self) -> None:
        """Say nothing more. Idempotent."""
        if self._beating is not None:
            self._beating.cancel()
        self._channel.close()

    def _beat(self) -> None:
        self._channel.say(words.BEAT)
        self._beating = asyncio.get_running_loop().call_later(words.EVERY, self._beat)

    def _heard(self, word: str) -> None:
        if word.startswith(words.GO):
            self._again = word.endswith(words.AGAIN)
            self._going.set()
        elif word in (words.PAUSE, words.RESUME):
            self._pauses.put_nowait(word == words.PAUSE)
        elif word.startswith((f"{words.COVER}-", f"{words.UNCOVER}-")):
            what, _, number = word.partition("-")
            self._covers.put_nowait((int(number), what == words.COVER))
        elif word.startswith(words.STOP):
            self.told = frozenset(word.split("-")[1:])
            if words.PATIENT not in self.told:
                self.patience_over.set()
            self._stop.set()
        elif word == words.HURRY:
            self._hurry.set()

    def _orphaned(self) -> None:
        self.told = frozenset()
        self.patience_over.set()
        self._stop.set()
