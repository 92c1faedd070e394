"""The processes of a run: started in a folder for their words, asked what CPU and memory they took, and stopped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.kv_table import PAGE
from gateway.demo.processes import free_port, undisturbed

__all__ = ["Failed", "Processes", "cpu", "free_port", "resident", "tree"]

STOP_SECONDS = 5.0
START_SECONDS = 60.0

CPU_CLOCK = 2
"""The kind of a process's CPU clock that counts its nanoseconds on a processor (CPUCLOCK_SCHED), of all threads."""


class Failed(Exception):
    """A process did not start, or answered wrongly. The message has its last words."""


class Processes:
    """A context: what was started in it is gone when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[subprocess.Popen[str], Path] = {}

    def __enter__(self) -> Processes:
        # Who ends us by a signal means what we have started as well.
        self._before = signal.signal(signal.SIGTERM, _end)
        return self

    def __exit__(self, *_: object) -> None:
        # `timeout` sends its signal twice, and the second must not interrupt what the first began.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.stop(list(self._running))
        signal.signal(signal.SIGTERM, self._before)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        more: Mapping[str, str] | None = None,
        speaks: bool = False,
    ) -> subprocess.Popen[str]:
        """Start ``command``; what it says goes to NAME.log, but for its stdout where it ``speaks`` to us. ``more``: of
        its environment."""
        log = self.folder / f"{name}.log"
        with log.open("w") as words, undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if speaks else words,
                stderr=words,
                text=True,
                start_new_session=True,
                cwd=cwd,
                env=environment() | dict(more or {}),
            )
            self._running[process] = log
        return process

    def says(self, process: subprocess.Popen[str]) -> str:
        """The line that it prints when it listens."""
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line:
            raise Failed(self.last_words(process))
        return line

    def last_words(self, process: subprocess.Popen[str]) -> str:
        log = self._running[process]
        words = log.read_text()
        return f"{log.stem}, exit code {process.poll()}:\n{words[:1500]}\n...\n{words[-1500:]}"

    def stop(self, which: Sequence[subprocess.Popen[str]]) -> None:
        for process in which:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in which:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in which:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            del self._running[process]


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def environment() -> dict[str, str]:
    """No proxy before loopback, and nobody asks the hub for tokenizers of models that do not exist."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"HF_HUB_OFFLINE": "1"}


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
