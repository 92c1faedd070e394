"""What processes have taken so far: CPU and memory, with all of their threads and children."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kv_table import PAGE

CPU_CLOCK = 2
"""The kind of a process's CPU clock that counts its nanoseconds on a processor (CPUCLOCK_SCHED), of all threads."""


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for each in _children(pid):
        found += tree(each)
    return found


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            yield from map(int, task.read_text().split())


def cpu(pids: Sequence[int]) -> float:
    """Seconds of CPU so far, user and system, of all threads, to the nanosecond: /proc knows hundredths."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            total += time.clock_gettime((~pid << 3) | CPU_CLOCK)
    return total


def resident(pids: Sequence[int]) -> int:
    """Bytes."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * PAGE
