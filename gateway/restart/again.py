"""Runs this command again in a new process, which takes over from this one (SIGUSR2): with new code, or a new
interpreter, and with what of the configuration only a restart changes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from gateway.core.tasks import TaskSet
from gateway.restart.channel import Channel
from gateway.restart.succession import Succession
from gateway.restart.takeover import PREDECESSOR

log = logging.getLogger("kvgate.restart")

END = 10.0
"""Seconds for a process that has given up to end, so that its exit code can be told."""

INIT = 1
"""The first process of a container: when it ends, the container does."""


class Again:
    """Starts the successor of this process, one at a time."""

    def __init__(self, succession: Succession, environ: Mapping[str, str]) -> None:
        self._succession = succession
        self._environ = dict(environ)
        self._tasks = TaskSet()
        self._running = False
        self.pid = 0
        """Of the last process that it has started."""

    def request(self) -> None:
        """Start it; for a signal handler. How it ends is logged."""
        if os.getpid() == INIT:
            log.error("SIGUSR2: the first process of a container cannot be replaced: start a new container")
        elif (successor := self._succession.successor) is not None or self._running:
            log.error("SIGUSR2: process %d is taking over already", self.pid if successor is None else successor)
        else:
            self._running = True
            self._tasks.start(self._run(), name="start again")

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        try:
            command = command_line(sys.executable, sys.orig_argv)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            channel = Channel(ours)
            with theirs:
                try:
                    process = await asyncio.to_thread(self._start, command, theirs.fileno())
                except OSError as error:
                    channel.close()
                    log.error("SIGUSR2: %s cannot be started: %s", command[0], error.strerror or error)
                    return
            self.pid = process.pid
            log.info("SIGUSR2: process %d starts, to take over", process.pid)
            if not await self._succession.talk(channel):
                await self._tell_end(process)
        finally:
            self._running = False

    def _start(self, command: Sequence[str], number: int) -> subprocess.Popen[bytes]:
        environ = self._environ | {PREDECESSOR: str(number)}
        return subprocess.Popen(command, env=environ, pass_fds=[number])

    async def _tell_end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            code = await asyncio.to_thread(process.wait, END)
        except subprocess.TimeoutExpired:
            log.error("process %d has not taken over, and has not ended", process.pid)
        else:
            log.error("process %d ended with %d; this one goes on", process.pid, code)


def command_line(executable: str, argv: Sequence[str]) -> list[str]:
    """The command that started this process, whose words are ``argv``, the interpreter first. A script that can be run
    by itself is run by itself: its first line may name another interpreter by now."""
    if len(argv) > 1 and not argv[1].startswith("-") and os.access(argv[1], os.X_OK):
        return [os.path.abspath(argv[1]), *argv[2:]]
    return [executable, *argv[1:]]
