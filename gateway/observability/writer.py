"""Log lines leave through a thread, so that whoever reads them cannot stall the streams.

A pipe whose reader stands still (a log collector that restarts, a terminal on hold) blocks the writer: on the event
loop that would be every answer at once. Here lines wait in a bounded buffer; beyond it they are dropped, counted, and
the count is logged as soon as there is room.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

# About 20,000 request lines: minutes of a busy gateway's log, and nothing next to an index.
_MAX_BUFFERED = 8 * 1024 * 1024

# Lines are gathered for so many seconds before one write: waking a thread for each line would cost more than the line.
_GATHER = 0.05


class LineWriter:
    """A file that ``write`` never blocks on. Lines are bytes, each with its end.

    ``dropped``: makes the line that tells how many were dropped.
    """

    def __init__(self, stream: BinaryIO, dropped: Callable[[int], bytes], max_buffered: int = _MAX_BUFFERED) -> None:
        self._stream = stream
        self._say_dropped = dropped
        self._max_buffered = max_buffered
        self._lines: deque[bytes] = deque()
        self._buffered = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvgate-log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> int:
        with self._lock:
            if self._buffered + len(line) > self._max_buffered:
                self._dropped += 1
                return 0
            self._lines.append(line)
            self._buffered += len(line)
        self._wake.set()
        return len(line)

    def flush(self) -> None:
        """Nothing: the thread flushes. (A logger calls this after every line.)"""

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left. A reader that stands still loses it after ``timeout`` seconds."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(_GATHER)
            self._wake.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        with self._lock:
            lines = list(self._lines)
            self._lines.clear()
            dropped, self._dropped = self._dropped, 0
        # Lines in hand count as buffered until they are written, or a reader that stands still would double the bound.
        if dropped:
            lines.append(self._say_dropped(dropped))
        # If the reader is gone (a closed pipe, a closed stream) there is nowhere left to say so.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(b"".join(lines))
            self._stream.flush()
        with self._lock:
            self._buffered = sum(map(len, self._lines))
