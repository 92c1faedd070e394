"""Log lines leave through a thread, so that whoever reads them cannot stall the streams.

A pipe whose reader stands still (a log collector that restarts, a terminal on hold) blocks the writer: on the event
loop that would be every answer at once. Here lines wait in a bounded buffer; beyond it they are dropped, counted, and
the count is logged as soon as there is room.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable
from typing import BinaryIO

# About 20,000 request lines: minutes of a busy gateway's log, and nothing next to an index.
_MAX_BUFFERED = 8 * 1024 * 1024

# Lines are gathered for so many seconds before one write, and that much of them: waking a thread for each would cost
# more than the line does, and each time it and the event loop take the interpreter's lock from one another.
_GATHER = 0.2
_ENOUGH = 64 * 1024


class LineWriter:
    """A file that ``write`` never blocks on. Lines are bytes, each with its end; what is there when the interpreter
    ends is written.

    ``dropped``: makes the line that tells how many were dropped.
    """

    def __init__(self, stream: BinaryIO, dropped: Callable[[int], bytes], max_buffered: int = _MAX_BUFFERED) -> None:
        self._stream = stream
        self._say_dropped = dropped
        self._max_buffered = max_buffered
        self._lines: list[bytes] = []
        self._buffered = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._gathering = False
        self._first = threading.Event()
        self._now = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvgate-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, line: bytes, *, now: bool = False) -> int:
        """``now``: it is not to wait for others."""
        with self._lock:
            buffered = self._buffered + len(line)
            if buffered > self._max_buffered:
                self._dropped += 1
                return 0
            self._lines.append(line)
            self._buffered = buffered
            # The thread is woken by the first line after a pause; while lines come, it looks for them itself.
            first = not self._gathering
            self._gathering = True
        if first:
            self._first.set()
        if (now or buffered >= _ENOUGH) and not self._now.is_set():
            self._now.set()
        return len(line)

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left. A reader that stands still loses it after ``timeout`` seconds."""
        atexit.unregister(self.close)
        self._closing = True
        self._now.set()
        self._first.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closing:
            self._first.wait()
            self._now.wait(_GATHER)
            self._now.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            dropped, self._dropped = self._dropped, 0
            if not lines and not dropped:
                self._gathering = False
                self._first.clear()
                return
        # Lines in hand count as buffered until they are written, or a reader that stands still would double the bound.
        if dropped:
            lines.append(self._say_dropped(dropped))
        # If the reader is gone (a closed pipe, a closed stream) there is nowhere left to say so.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(b"".join(lines))
            self._stream.flush()
        with self._lock:
            self._buffered = sum(map(len, self._lines))
