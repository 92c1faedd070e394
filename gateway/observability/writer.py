"""Writes log lines in a thread, so that a slow reader of the log cannot stall the streams.

A pipe whose reader stops (a log collector that restarts, a terminal on hold) blocks its writer: on the event loop that
would stop every answer. Here lines wait in a bounded buffer. Lines beyond it are dropped and counted, and the count is
logged as soon as there is room.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TypeAlias

# Bytes: about 20,000 request lines, minutes of a busy gateway's log; little beside a cache index.
_MAX_BUFFERED = 8 * 1024 * 1024

# Lines are gathered for ``_GATHER`` seconds or ``_ENOUGH`` bytes before one write: waking the thread for each line
# would cost more than the line, since thread and event loop then take the GIL from each other.
_GATHER = 0.2
_ENOUGH = 64 * 1024

# Lines that are made at once: some 0.2 ms. In each write the thread releases the GIL, for which the event loop may be
# waiting.
_AT_ONCE = 16

# Bytes that a pipe takes whole (PIPE_BUF): lines of several workers, which write to the same one, stay whole.
_WHOLE = 4096

# Bytes that a line counts for until it is made: a request's line has 400, what it is made of more.
_UNMADE = 1024

Line: TypeAlias = bytes | Callable[[], bytes]
"""A line with its end, or what makes it."""


class LineWriter:
    """Writes to ``stream`` without blocking the caller. What is left when the interpreter exits is written then.

    A line may be given as what makes it: the thread calls that. Many lines in one go take a fraction of what each
    takes between the steps of a request, whose code is not in the processor's cache.

    ``dropped``: makes the line that reports how many were dropped.
    """

    def __init__(self, stream: BinaryIO, dropped: Callable[[int], bytes], max_buffered: int = _MAX_BUFFERED) -> None:
        self._stream = stream
        self._dropped_line = dropped
        self._max_buffered = max_buffered
        self._lines: list[Line] = []
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

    def write(self, line: Line, *, now: bool = False) -> int:
        """``now``: write it at once, without waiting for more lines. Returns the bytes taken: 0 if it was dropped."""
        size = len(line) if isinstance(line, bytes) else _UNMADE
        with self._lock:
            buffered = self._buffered + size
            if buffered > self._max_buffered:
                self._dropped += 1
                return 0
            self._lines.append(line)
            self._buffered = buffered
            # Only the first line after a pause wakes the thread; while lines come, the thread checks by itself.
            first = not self._gathering
            self._gathering = True
        if first:
            self._first.set()
        if (now or buffered >= _ENOUGH) and not self._now.is_set():
            self._now.set()
        return size

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left. A reader that does not read within ``timeout`` seconds loses it."""
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
            taken = self._buffered
            dropped, self._dropped = self._dropped, 0
            if not lines and not dropped:
                self._gathering = False
                self._first.clear()
                return
        # Lines count as buffered until they are written; else a stopped reader would double the bound.
        if dropped:
            lines.append(self._dropped_line(dropped))
        for first in range(0, len(lines), _AT_ONCE):
            for part in whole([_made(line) for line in lines[first : first + _AT_ONCE]]):
                # If the reader is gone (a closed pipe, a closed stream) the failure cannot be reported.
                with contextlib.suppress(OSError, ValueError):
                    self._stream.write(part)
                    self._stream.flush()
        with self._lock:
            self._buffered -= taken


def whole(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in parts of at most ``_WHOLE`` bytes; a longer line is a part of its own."""
    part = b""
    for line in lines:
        if part and len(part) + len(line) > _WHOLE:
            yield part
            part = b""
        part += line
    if part:
        yield part


def _made(line: Line) -> bytes:
    if isinstance(line, bytes):
        return line
    try:
        return line()
    except Exception:  # a defect of ours: it must not end the thread, and with it the log
        traceback.print_exc()
        return b""
