"""A worker's side of its parent: it says that it lives and how far it is, and hears when to serve and when to end.

A worker whose parent is gone ends, too, as at SIGTERM: nobody would notice when it fails, and the next service could
not have its port.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gateway.config.document import text_of
from gateway.errors import ConfigError
from gateway.sharing.seat import Seat
from gateway.workers import words
from gateway.workers.channel import Channel

log = logging.getLogger("kvgate.workers")

PARENT = "KVGATE_PARENT"
"""The environment variable with the descriptor of the channel to the parent."""

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
    """``seat``: this worker's. ``end``: of the channel to its parent."""

    def __init__(self, seat: Seat, end: socket.socket) -> None:
        self.seat = seat
        self._file = CONFIG
        self._digest = ""
        self._channel = Channel(end, self._heard, self._orphaned)
        self._going = asyncio.Event()
        self.patient = False
        """Whether its parent has let clients some time to go elsewhere before this worker accepts no more."""
        self.stays = True
        """Whether its parent keeps the clients' socket for another worker when this one ends."""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._beating: asyncio.TimerHandle | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Post | None:
        """None: this process has no parent. Raises ConfigError if it is told a wrong one."""
        try:
            seat = Seat.from_environment(environ)
            return None if seat is None else cls(seat, socket.socket(fileno=int(environ.get(PARENT, "-1"))))
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

    async def may_serve(self) -> None:
        """Say that all is loaded, and wait for the parent's word."""
        self._file = WANTED
        self._channel.say(f"{words.READY}-{self._digest}")
        await self._going.wait()

    def listening(self) -> socket.socket:
        """The socket on which to accept clients, for the caller to close: the parent keeps it, too."""
        return socket.socket(fileno=os.dup(self.seat.listen_fd))

    @property
    def admin_socket(self) -> str:
        return admin_socket(self.seat.directory, self.seat.number)

    def serving(self) -> None:
        """Say that clients are served."""
        self._channel.say(words.SERVING)

    async def leave(self, render: Callable[[], Awaitable[tuple[bytes, str]]]) -> None:
        """Leave the last metrics, which ``render`` makes, to the parent."""
        text, _ = await render()
        left = left_figures(self.seat.directory, os.getpid())
        try:
            left.with_suffix(".part").write_bytes(text)
            left.with_suffix(".part").rename(left)
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
        if word == words.GO:
            self._going.set()
        elif word in (words.RETIRE, words.STOP):
            self.patient, self.stays = word == words.RETIRE, False
            self._stop.set()
        elif word == words.HURRY:
            self._hurry.set()

    def _orphaned(self) -> None:
        self.stays = False
        self._stop.set()
