"""How long the gateway keeps everybody waiting: its /livez, asked all the time from a thread of its own."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

PAUSE = 0.01
"""Seconds between two questions: a stall that is shorter is none."""


class Stall:
    """``longest``: seconds of the slowest answer; one that has not come yet counts by what it has taken so far."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port
        self._longest = 0.0
        self._asked: float | None = None
        self._over = threading.Event()

    @property
    def longest(self) -> float:
        asked = self._asked
        return max(self._longest, 0.0 if asked is None else time.monotonic() - asked)

    def forget(self) -> None:
        self._longest = 0.0

    def ask(self) -> None:
        """Ask until ``end``. A question that fails ends the connection, and is asked again on another."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=30)
        while not self._over.wait(PAUSE):
            self._asked = began = time.monotonic()
            try:
                connection.request("GET", "/livez")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
            self._longest = max(self._longest, time.monotonic() - began)
            self._asked = None
        connection.close()

    def end(self) -> None:
        self._over.set()


@contextlib.contextmanager
def watching(url: str) -> Iterator[Stall]:
    stall = Stall(url)
    thread = threading.Thread(target=stall.ask, name="stall", daemon=True)
    thread.start()
    try:
        yield stall
    finally:
        stall.end()
        thread.join(35)
