"""The new process's side of a restart: it gets the listening sockets of the one that serves, and its place.

1. ``hello``: the old one answers with its sockets (``sockets``, several times where they are many), and serves on.
2. ``stop``, once this process has loaded everything and could serve: the old one stops accepting, saves what is to be
   kept, and says ``stopped``. Clients that connect meanwhile wait in the sockets, which both processes hold.
3. ``serving``, once this one accepts: the old one answers ``yours``, and drains.

If this process fails before ``serving``, in whatever way, the old one accepts again, and nothing was lost. So it does
where ``serving`` does not come in time: it says ``late``, and this process lets its running answers end, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, MutableMapping
from types import TracebackType
from typing import Any

from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError, GatewayError
from gateway.restart.channel import Channel, Message, Place, name_of, user_of

log = logging.getLogger("kvgate.restart")

PREDECESSOR = "KVGATE_PREDECESSOR"
"""The environment variable with the descriptor on which the process that started this one can be asked."""

SILENT = "a kvgate of this user that serves on this port does not answer"

ANSWER = 10.0
"""Seconds for the old process's answer: it saves a file at most. Its event loop may be held up for a second or two."""


class TakeOver:
    """A context: if it is left by an error before ``serving``, the old process hears why, and goes on.

    ``found``: there is an old process, be it gone by now.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        """``environ``: tells of the process that has started this one to that end, if one has; it is told to nobody
        else."""
        self.found = False
        number = "" if environ is None else environ.pop(PREDECESSOR, "")
        self._channel = Channel(socket.socket(fileno=int(number))) if number.isdigit() else None
        self._held: list[tuple[Place, socket.socket]] = []
        self._is_back = False

    def __enter__(self) -> TakeOver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.give_up(error.message if isinstance(error, GatewayError) else f"{type(error).__name__}: {error}")
        self._end()

    def give_up(self, why: str) -> bool:
        """Let the old process go on, which hears why. False: there is none, or none any more; True: it serves."""
        goes_on = self._is_back or (self._channel is not None and self._channel.send("failed", why=why))
        self._end()
        return goes_on

    async def find(self, port: int) -> None:
        """Take over from the process that has started this one to that end; or else from the kvgate of this user that
        serves on ``port``, if one does. ``port`` 0: on none. Raises ConfigError where it does not answer, or may not be
        replaced now."""
        if self._channel is not None:
            await self._ask(self._channel)
            return
        if not port or not hasattr(socket, "SO_PEERCRED"):
            return
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            asked.connect(name_of(port))
            foreign = user_of(asked) != os.getuid()  # anybody may take a name
        except OSError:
            foreign = True
        if foreign:
            asked.close()
            return
        await self._ask(Channel(asked))

    def take(self, name: str, host: str, port: int) -> list[socket.socket]:
        """The old process's sockets for a listener with this address, which are the caller's now. Empty if it has
        none."""
        taken = [
            (place, one)
            for place, one in self._held
            if (place.name, place.host) == (name, host) and port in (place.port, one.getsockname()[1])
        ]
        self._held = [held for held in self._held if held not in taken]
        return [one for _, one in taken]

    async def stopped(self) -> None:
        """Ask the old process to accept no more and to save, and wait until it has. Raises ConfigError where it does
        not answer: it hears that, and goes on, once it can."""
        try:
            await self._say("stop", "stopped")
        except TimeoutError:
            raise ConfigError(SILENT) from None

    async def hold(self, until: Coroutine[Any, Any, None]) -> None:
        """Wait for ``until``, in the place that the old process has left. Raises ConfigError where it takes that back
        meanwhile."""
        tasks = TaskSet()
        waiting = tasks.start(until, name="hold another process's place", awaited=True)
        hearing = tasks.start(self._lost(), name="hear whether it takes that back", awaited=True)
        try:
            await asyncio.wait((waiting, hearing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()  # the channel is heard by one at a time
        for task in (hearing, waiting):
            if not task.cancelled():
                task.result()

    async def serving(self) -> None:
        """Tell the old process that this one accepts, and wait until it has given its place up. Raises ConfigError
        where it has taken its place back before."""
        try:
            await self._say("serving", "yours")
        except TimeoutError:
            log.warning("%s: it will give up its place once it can", SILENT)
        self._end()

    async def _say(self, say: str, wanted: str) -> None:
        """Say a word and hear the answer to it; nothing where the old process has ended. Raises TimeoutError."""
        if (channel := self._channel) is None:
            return
        channel.send(say)  # where it has left, what it said before that is still to be heard
        self._heard(await channel.receive(ANSWER), wanted)

    async def _lost(self) -> None:
        """Wait for what the old process says unasked: that it has taken its place back (ConfigError is raised then).
        One that has ended says nothing any more."""
        if self._channel is not None:
            self._heard(await self._channel.receive())
        await asyncio.Event().wait()

    def _heard(self, answer: Message | None, wanted: str = "") -> None:
        if answer is None:
            log.warning("the process that served before has ended: this one serves now")
            self._end()
        elif answer.say != wanted:
            self._end()
            self._is_back = True
            raise ConfigError(f"process {answer.pid} serves on this port again: {answer.why or answer.say}")

    async def _ask(self, channel: Channel) -> None:
        self._channel = channel
        channel.send("hello")
        while True:
            try:
                answer = await channel.receive(ANSWER)
            except TimeoutError:
                raise ConfigError(SILENT) from None
            if answer is None:  # it has just ended
                self._end()
                return
            if answer.say != "sockets":
                self._end()
                raise ConfigError(f"process {answer.pid} serves on this port, and cannot be taken over: {answer.why}")
            self._held += zip(answer.places, channel.received, strict=False)
            channel.received = channel.received[len(answer.places) :]
            if not answer.more:
                break
        self.found = True
        for _, one in self._held:
            one.setblocking(False)
        log.info("process %d serves: taking over from it", answer.pid)

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for _, one in self._held:
            one.close()
        self._held = []
