"""A child process in a group of its own, which never outlives whoever started it.

A guard (a shell that waits for the end of its standard input) kills the group when its pipe closes: because ``kill``
closes it, or because the starting process has ended in any way, SIGKILL included. A parent-death signal would not do:
it reaches the child alone, and an engine's core goes on when its API server is gone.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GUARD = 'cat >/dev/null; kill -s KILL -- "-$0" 2>/dev/null'
WAIT_SECONDS = 30.0
END_SECONDS = 30.0  # of SIGKILL, on a machine with more to do than cores
TAIL_LINES = 30
FIRST_PORT = 10_000
LAST_PORT = 32_000
"""Below the ports that Linux gives to connections (32,768 and more by default): one of those could be taken before who
asked for it listens, or while its engine is dead."""
_PORTS = itertools.count(os.getpid() * 61)
"""Two sessions at once begin in different places."""


class NotReady(AssertionError):
    """What was waited for did not come in time, or its process ended; the message holds the end of its log."""


@dataclass(slots=True)
class Process:
    """A running child. ``log`` gets its output and its errors, appended."""

    child: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str], cwd: Path) -> Process:
        """Run ``command`` as the leader of a new session."""
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, str(child.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        return cls(child, guard, log)

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def running(self) -> bool:
        return self.child.poll() is None

    def terminate(self, seconds: float) -> int:
        """SIGTERM to the child alone, as a service manager sends it; its exit status within ``seconds``."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=seconds)

    def kill(self) -> None:
        """SIGKILL to the whole group; return when nothing of it is left. Idempotent."""
        assert self.guard.stdin is not None
        self.guard.stdin.close()
        self.guard.wait(timeout=END_SECONDS)
        self.child.wait(timeout=END_SECONDS)
        deadline = time.monotonic() + END_SECONDS
        while group_runs(self.pid):
            assert time.monotonic() < deadline, f"processes of group {self.pid} outlive SIGKILL"
            time.sleep(0.02)

    def unpin(self) -> None:
        """Let every thread of the group run on any of our cores, whatever it has bound itself to."""
        cores = os.sched_getaffinity(0)
        for process in group_members(self.pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in (process / "task").iterdir():
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(int(task.name), cores)

    def tail(self) -> str:
        return tail(self.log)


def wait_for(seen: Callable[[], T], what: str, process: Process, seconds: float = WAIT_SECONDS) -> T:
    """Call ``seen`` until it is true, and return that; raise NotReady after ``seconds`` or at the process's end."""
    deadline = time.monotonic() + seconds
    while not (value := seen()):
        if not process.running:
            raise NotReady(f"ended while waiting for {what}\n{process.tail()}")
        if time.monotonic() > deadline:
            raise NotReady(f"{what}: not within {seconds:.0f} s\n{process.tail()}")
        time.sleep(0.05)
    return value


def group_runs(group: int) -> bool:
    """Whether a process of the group runs."""
    return next(group_members(group), None) is not None


def group_members(group: int) -> Iterator[Path]:
    """The running processes of a group, in /proc; those that only wait to be reaped are none."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _parent, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            yield entry


def clean_environment(*, without: tuple[str, ...]) -> dict[str, str]:
    """This process's environment without the variables whose names begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(without)}


def free_port() -> int:
    """A loopback port that nothing uses now, another one with each call."""
    for number in _PORTS:
        port = FIRST_PORT + number % (LAST_PORT - FIRST_PORT)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError  # the numbers do not end


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    if not path.exists():
        return f"({path.name}: nothing was written)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
