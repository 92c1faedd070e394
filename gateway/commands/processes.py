"""Child processes: started, waited for until they answer, their output kept, and none of them left behind.

The demo, the benchmarks and the tests of real engines start theirs here. The file is among the commands, because one
of its users is installed with the gateway: benchmarks and tests may import the gateway, and nothing installed may
import them.

Each child leads a session of its own, so that Ctrl-C in a terminal reaches only the program that started it, which
then stops its children in order. A guard (a shell that waits for the end of its standard input) kills a child's whole
group when its pipe closes: because ``kill`` closes it, or because the program has ended in any way, SIGKILL included.
A parent-death signal would not do: it reaches the child alone, and an engine's core goes on when its API server is
gone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GUARD = 'cat >/dev/null; kill -s KILL -- "-$0" 2>/dev/null'

START_SECONDS = 60.0
"""Seconds for a process to start. A cold import of transformers on a busy laptop takes 20."""
STOP_SECONDS = 5.0
"""Seconds for a process to end after SIGTERM. It has no requests then. After that it is killed."""
WAIT_SECONDS = 30.0
END_SECONDS = 30.0
"""Seconds from SIGKILL to the end of the group, on an overloaded machine."""

TAIL = 2000
"""Characters of a log that an error shows."""

PORTS = range(10_000, 32_000)
"""Ports below those that Linux gives to outgoing connections (32,768 and more by default): such a port could be taken
before the process listens on it, or while that process is dead."""
_NUMBERS = itertools.count(os.getpid() * 61)
"""Two programs at once begin at different ports."""


class NotReady(Exception):
    """A condition did not come true in time, or its process ended. The message has the end of the process's log."""


@dataclass(slots=True, eq=False)
class Process:
    """A running child. ``log`` gets its errors, and its output unless it ``talks``; both are appended."""

    child: subprocess.Popen[str]
    guard: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
        talks: bool = False,
    ) -> Process:
        """Run ``command`` as the leader of a new session. ``talks``: its input and its output are pipes to us."""
        with log.open("a") as output:
            child = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else output,
                stderr=output,
                text=True,
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

    def line(self, seconds: float = START_SECONDS) -> str:
        """The next line that it prints; it ``talks``. Raises NotReady."""
        assert self.child.stdout is not None
        ready, _, _ = select.select([self.child.stdout], [], [], seconds)
        line = self.child.stdout.readline() if ready else ""
        if not line:
            raise NotReady(f"{self.log.stem} did not start:\n{self.tail()}")
        return line

    def write_line(self, line: str) -> None:
        """Write a line to its input; it ``talks``."""
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def terminate(self, seconds: float) -> int:
        """Send SIGTERM to the child alone, as a service manager does; returns its exit status within ``seconds``."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=seconds)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, and return when nothing of it is left. Idempotent."""
        assert self.guard.stdin is not None
        self.guard.stdin.close()
        self.guard.wait(timeout=END_SECONDS)
        self.child.wait(timeout=END_SECONDS)
        deadline = time.monotonic() + END_SECONDS
        while next(group_members(self.pid), None) is not None:
            assert time.monotonic() < deadline, f"processes of group {self.pid} outlive SIGKILL"
            time.sleep(0.02)
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of what was still to be written to it
                    pipe.close()

    def tail(self) -> str:
        """The end of its log."""
        return tail(self.log)


class Processes:
    """A context: everything started in it has ended when it is left, also by an exception or Ctrl-C.

    ``folder``: of the logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Process] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(list(self._running))

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        talks: bool = False,
    ) -> Process:
        """As ``Process.start``, with its log in a new NAME.log. ``env``: by default ``offline``'s."""
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        with undisturbed():
            process = Process.start(
                command, log=log, env=offline(os.environ) if env is None else env, cwd=cwd, talks=talks
            )
            self._running.append(process)
        return process

    def stop(self, processes: Sequence[Process]) -> None:
        """Send SIGTERM to all of them, wait, and kill those that have not ended."""
        # A second Ctrl-C ends the waiting, not the killing.
        with contextlib.suppress(KeyboardInterrupt):
            for process in processes:
                process.child.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.child.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:
            process.kill()
            self._running.remove(process)


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-TAIL:]


def wait_for(seen: Callable[[], T], what: str, process: Process, seconds: float = WAIT_SECONDS) -> T:
    """Call ``seen`` until it is true, and return that. Raises NotReady after ``seconds``, or when the process ends."""
    deadline = time.monotonic() + seconds
    while not (value := seen()):
        if not process.running:
            raise NotReady(f"ended while waiting for {what}\n{process.tail()}")
        if time.monotonic() > deadline:
            raise NotReady(f"{what}: not within {seconds:.0f} s\n{process.tail()}")
        time.sleep(0.05)
    return value


def group_members(group: int) -> Iterator[Path]:
    """The running processes of a group, in /proc; none on a system without it. Those that only wait to be reaped are
    left out."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            yield stat.parent


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM: an interrupt between a process's start and our note of it would lose it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is handled in this thread
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda caught, _: came.append(caught))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def sigterm_raises(error: BaseException) -> Iterator[None]:
    """Raise ``error`` in the main thread at the first SIGTERM, so that contexts are left as after any exception. A
    second one is ignored: ``timeout`` sends its signal twice."""

    def caught(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise error

    before = signal.signal(signal.SIGTERM, caught)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def offline(of_ours: Mapping[str, str]) -> dict[str, str]:
    """``of_ours``, our environment, for a process on loopback: without a proxy, and without the Hugging Face hub, which
    does not know the models' names."""
    kept = {name: value for name, value in of_ours.items() if not name.lower().endswith("_proxy")}
    return kept | {"HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    """A loopback port that nothing uses now, another one with each call."""
    for number in _NUMBERS:
        port = PORTS[number % len(PORTS)]
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError  # the numbers do not end
