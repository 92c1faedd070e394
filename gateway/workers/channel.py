"""What a parent and a worker say to each other: single words, over a pair of sockets that only the two have.

The end of the other one is the end of the socket, which the kernel tells whatever happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

MOST = 65536
"""Bytes that are read at once: thousands of words."""


class Channel:
    """One end. ``heard``: called with each word of the other. ``ended``: called once, when the other is gone.

    Nothing is called before ``open``, nor after ``close``.
    """

    def __init__(self, end: socket.socket, heard: Callable[[str], None], ended: Callable[[], None]) -> None:
        end.setblocking(False)
        self._end = end
        self._heard = heard
        self._ended = ended
        self._rest = b""
        self._is_open = False

    def open(self) -> None:
        """Listen to the other, in the running loop."""
        asyncio.get_running_loop().add_reader(self._end.fileno(), self.read)
        self._is_open = True

    def close(self) -> None:
        """Idempotent."""
        if self._is_open:
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            self._is_open = False
        self._end.close()

    def say(self, word: str) -> None:
        """Without a wait. A word is lost where the other is gone, or has not read for thousands of words: it is then
        paused, and has nothing of an old word."""
        with contextlib.suppress(OSError):
            self._end.send(word.encode() + b"\n")

    def read(self) -> None:
        """Hear what there is now, without a wait."""
        while self._is_open:
            try:
                part = os.read(self._end.fileno(), MOST)
            except BlockingIOError:
                return
            except OSError:  # reset
                part = b""
            if not part:
                self.close()
                self._ended()
                return
            *words, self._rest = (self._rest + part).split(b"\n")
            for word in words:
                self._heard(word.decode())
