"""One worker's process, as its parent sees it: started, heard, killed if it hangs, and reaped.

It is started by exec, not by fork alone: tokenizers have threads, which no fork copies. It is in its parent's group of
processes, so that who kills the group leaves nothing, and holds back what a terminal sends to all of them: its
parent says when it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.framework import Clock
from gateway.sharing.seat import Seat
from gateway.workers import words
from gateway.workers.channel import Channel
from gateway.workers.post import PARENT, PORTS

log = logging.getLogger("kvgate.workers")

HELD_BACK = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""Ctrl-C, a closed terminal, and what starts a service again: they may come to all processes, and mean the parent."""

PAUSE = 5.0
"""Seconds for a worker to save its files: two of less than a megabyte."""

NOT_INHERITED = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""Variables of the service manager, with which only the parent speaks."""


@dataclass(frozen=True, slots=True)
class Command:
    """How workers are started: the command line and the environment, which a seat's variables are added to."""

    line: Sequence[str]
    environ: Mapping[str, str]


class Worker:
    """A running worker. ``told``: called with ``READY`` when it could serve, with ``SERVING`` when it does, and with
    ``LEAVING`` when it does no more. One whose loop stands still for longer than usual, but has time (``patience``),
    leaves, and serves again once it is heard.

    ``digest``: of its configuration, once it is ready. ``ended``: set to its exit status (negative: a signal's number)
    when it has ended. ``is_asked``: it has what is in force, and must hear of each change. ``is_serving``: it accepts
    connections. ``is_leaving``: no more, and it ends by itself.
    """

    def __init__(
        self,
        seat: Seat,
        command: Command,
        clock: Clock,
        told: Callable[[Worker, str], None],
        ports: Sequence[Sequence[int]] = (),
    ) -> None:
        """Starts it. ``ports``: descriptors of the sockets on which each worker serves clients, by number. Raises
        OSError."""
        self.seat = seat
        self.digest = ""
        self.is_asked = False
        self.is_serving = False
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._clock = clock
        self._told = told
        self.patience = words.HUNG
        """Seconds without a beat after which it is killed."""
        self.is_leaving = False
        self._is_silent = False
        self._paused: asyncio.Future[None] | None = None
        self._beat_at: float | None = None
        self._begun_at = clock.monotonic()
        self._starved_at = 0.0
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _started(seat, command, theirs, ports)
        log.info("worker %d is process %d", seat.number, self._process.pid)
        self._channel = Channel(ours, self._heard, lambda: None)
        self._channel.open()
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def number(self) -> int:
        return self.seat.number

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self, *, again: bool = False) -> None:
        """Let it accept connections. ``again``: when it has read what another service has left in files."""
        self._channel.say(f"{words.GO}-{words.AGAIN}" if again else words.GO)

    async def pause(self) -> None:
        """Let it accept no more and save its files; returns when it has, or has ended."""
        self._paused = asyncio.get_running_loop().create_future()
        self._channel.say(words.PAUSE)
        await asyncio.wait((self._paused, self.ended), timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)

    def cover(self, number: int) -> None:
        """Let it accept the clients of another worker, too."""
        self._channel.say(f"{words.COVER}-{number}")

    def uncover(self, number: int) -> None:
        """Let it leave these to the other worker again."""
        self._channel.say(f"{words.UNCOVER}-{number}")

    def resume(self) -> None:
        """Let it accept again."""
        self._channel.say(words.RESUME)

    def stop(self, how: Iterable[str] = ()) -> None:
        """Let it drain and end. One that has not begun to listen to its parent has nothing to drain. ``how``:
        ``PATIENT``, ``KEPT``, ``TAKEN``."""
        if self._beat_at is None:
            self._signal(signal.SIGTERM)
        self._channel.say("-".join((words.STOP, *how)))

    def hurry(self) -> None:
        """Let it end now."""
        self._channel.say(words.HURRY)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def look(self) -> None:
        """Kill it if its loop hangs. Seconds in which it was ready to run and got no core do not count: then the
        machine is too busy, and a new process would make it worse. Before it serves, it has the time of one that loads
        a tokenizer."""
        self._channel.read()  # what it said while we did not run ourselves
        if self.ended.done():
            return
        patience = self.patience if self.is_serving else words.LOADING
        silent = self._clock.monotonic() - (self._begun_at if self._beat_at is None else self._beat_at)
        if silent <= words.HUNG:
            return
        stood_still = silent - (starved_seconds(self.pid) - self._starved_at)
        if stood_still > patience:
            log.error("worker %d (process %d) hangs: nothing of it for %.1f s; killed", self.number, self.pid, silent)
            self.kill()
        elif stood_still > words.HUNG and self.is_serving and not self.is_leaving and not self._is_silent:
            self._is_silent = True
            self._told(self, words.LEAVING)

    def close(self) -> None:
        """Kill it if it still runs, and reap it."""
        if not self.ended.done():
            self.kill()
            self._process.wait()
            self._reap()

    def _heard(self, word: str) -> None:
        self._beat_at = self._clock.monotonic()
        self._starved_at = starved_seconds(self.pid)
        if self._is_silent:
            self._is_silent = False
            self._told(self, words.SERVING)
        if word == words.PAUSED:
            if self._paused is not None and not self._paused.done():
                self._paused.set_result(None)
        elif word == words.SERVING:
            self.is_serving = True
            self._told(self, words.SERVING)
        elif word == words.LEAVING:
            self.is_leaving = True
            self._told(self, words.LEAVING)
        elif word.startswith(words.READY):
            self.digest = word.partition("-")[2]
            self._told(self, words.READY)

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended.done():  # not reaped: the number is still this process's
            self._process.send_signal(number)

    def _reap(self) -> None:
        status = self._process.poll()
        if status is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._channel.close()
        if not self.ended.done():
            self.ended.set_result(status)


def _started(
    seat: Seat, command: Command, end: socket.socket, ports: Sequence[Sequence[int]]
) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in command.environ.items() if name not in NOT_INHERITED}
    listed = ";".join(" ".join(map(str, each)) for each in ports)
    environ |= seat.to_environment() | {PARENT: str(end.fileno()), PORTS: listed}
    passed = {end.fileno(), *itertools.chain(*ports), *(number for number in seat.descriptors if number >= 0)}
    # Held back over the start, for the child inherits that; what comes to us meanwhile comes afterwards.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        return subprocess.Popen(command.line, env=environ, stdin=subprocess.DEVNULL, pass_fds=tuple(passed))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def starved_seconds(pid: int) -> float:
    """For how long the process's first thread was ready to run and had no core, in all; 0 where that is not known."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
