"""The link to a server that is kept: what is asked of it, and what is heard on its channels.

Two connections: one hears, if there are channels, and one asks. Commands wait in a bounded list and go out together;
the next ones go when these are answered, so that nothing piles up in a socket. Whatever fails ends both connections,
all that waits fails at once, and they are made anew, with growing pauses. No request waits for any of it without a
limit of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.framework import Clock
from gateway.valkey.client import connect, failures

log = logging.getLogger("kvgate.valkey")

ANSWER = 3.0
"""Seconds within which the server answers what was sent together, or begins to hear; above that it is taken for away.
A slow server answers within half a second, and its failover takes longer whatever is waited for."""

SILENCE = 3.0
"""Seconds without a message after which a hearing connection is asked whether it still lives."""

IDLE = 1.0
"""Seconds without a command after which the asking connection is tried: who asks next is told at once that the server
is away."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds until the server is tried again; each time twice as long, up to the second, and up to a fifth more by chance.
All is whole again within a second of its return; two attempts a second cost it nothing."""

MOST_WAITING = 1024
"""Commands that may wait for the server. Each is some hundred bytes to 100 KB, and what is told is told anew."""

MOST_TOGETHER = 128
"""Commands that go out together: they take the loop about 2 ms."""

AT_ONCE = 64
"""Messages that are taken before the loop may do something else: 1 to 3 ms of it."""

Heard = Callable[[bytes], None]


class Away(Exception):
    """The server cannot be reached now, or has no place for one more command, or has refused it."""


class Link:
    """``url``: of the server. ``channels``: what is heard there, and who is told of it: each message once, in the order
    of a channel, in the loop. ``chance``: of the pauses. Raises ConfigError as ``connect`` does.

    ``up``: both connections live. ``problem``: why not, in words. ``outages``: how often it was lost.
    """

    def __init__(self, url: str, channels: dict[str, Heard], clock: Clock, chance: random.Random) -> None:
        self.up = False
        self.problem = "not connected yet"
        self.outages = 0
        self._url = url
        self._channels = {name.encode(): heard for name, heard in channels.items()}
        self._chance = chance
        self._limit = LogLimit(clock)
        self._watchers: list[Callable[[], None]] = []
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[Any] | None]] = []
        self._wanted = asyncio.Event()
        self._tasks = TaskSet()
        connect(url)

    def watch(self, changed: Callable[[], None]) -> None:
        """``changed`` is called each time that ``up`` has changed."""
        self._watchers.append(changed)

    def start(self) -> None:
        self._tasks.start(self._run(), name="keep the link to Valkey")

    async def close(self) -> None:
        """What was told goes out before, within half a second."""
        if self.up:
            with contextlib.suppress(Away, TimeoutError):
                async with asyncio.timeout(0.5):
                    await self.ask("PING")
        await self._tasks.close()
        self._lose("closed")

    def tell(self, *command: Any) -> bool:
        """Send a command whose answer nobody needs. False: it is not sent, since the server is away."""
        if not self.up or len(self._waiting) >= MOST_WAITING:
            return False
        self._waiting.append((command, None))
        self._wanted.set()
        return True

    async def ask(self, *command: Any) -> Any:
        """The answer to a command: bytes, a number, a list or None. Raises Away, at once where the server is away; it
        answers within ``ANSWER`` or is taken for away. Whoever waits on a request's way sets a shorter limit."""
        if not self.up:
            raise Away(self.problem)
        if len(self._waiting) >= MOST_WAITING:
            raise Away(f"{MOST_WAITING} commands wait for the server")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        self._wanted.set()
        return await answer

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._live()
            except failures() as error:
                if self.up:
                    pause = FIRST_PAUSE
                self._lose(str(error) or type(error).__name__)
            except Exception as error:
                # A defect, here or in the client's package, must not end the link for ever.
                log.exception("the link to Valkey failed")
                self._lose(type(error).__name__)
            await asyncio.sleep(pause * self._chance.uniform(1.0, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _live(self) -> None:
        """Connect, and serve until something fails, which is raised."""
        pool = connect(self._url, decode=False).connection_pool
        asking, hearing = pool.make_connection(), pool.make_connection()
        both = TaskSet()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(ANSWER):
                await asking.connect()
                if self._channels:
                    await hearing.connect()
                    await hearing.send_command("SUBSCRIBE", *self._channels)
                    for _ in self._channels:
                        await hearing.read_response()
            self._found()
            tasks.append(both.start(self._send(asking), name="ask", awaited=True))
            if self._channels:
                tasks.append(both.start(self._hear(hearing), name="hear", awaited=True))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await both.close()
            await asyncio.gather(*tasks, return_exceptions=True)  # both may have failed, of which one is told
            for connection in (asking, hearing):
                with contextlib.suppress(*failures()):
                    await connection.disconnect(nowait=True)

    def _found(self) -> None:
        log.info("connected to Valkey")
        self.up, self.problem = True, ""
        self._tell_watchers()

    def _lose(self, why: str) -> None:
        was_up, self.up, self.problem = self.up, False, why
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            refuse(answer, why)
        if was_up:
            self.outages += 1
        if why != "closed" and (count := self._limit.admit("away")) is not None:
            log.warning("Valkey is away: %s; it is tried again%s", why, left_out(count))
        if was_up:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for changed in self._watchers:
            changed()

    async def _send(self, connection: Any) -> None:
        while True:
            if not self._waiting:
                self._wanted.clear()
                try:
                    async with asyncio.timeout(IDLE):
                        await self._wanted.wait()
                except TimeoutError:
                    self._waiting.append((("PING",), None))
            together, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            try:
                async with asyncio.timeout(ANSWER):
                    await self._exchange(connection, together)
            finally:
                for _, answer in together:
                    refuse(answer, "the connection was lost")

    async def _exchange(self, connection: Any, together: Sequence[tuple[tuple[Any, ...], Any]]) -> None:
        from redis.exceptions import ReadOnlyError, ResponseError

        packed = connection.pack_commands([command for command, _ in together])
        await connection.send_packed_command(packed, check_health=False)
        for command, answer in together:
            try:
                answered = await connection.read_response()
            except ReadOnlyError:
                raise  # this server leads no more: another one may have its name by now
            except ResponseError as error:
                if answer is None and (count := self._limit.admit("refused", str(command[0]))) is not None:
                    log.warning("Valkey refuses %s: %s%s", command[0], error, left_out(count))
                refuse(answer, str(error))
                continue
            if answer is not None and not answer.done():
                answer.set_result(answered)

    async def _hear(self, connection: Any) -> None:
        asked, taken = False, 0
        while True:
            message = await connection.read_response(timeout=SILENCE)
            if message is None:
                if asked:
                    raise TimeoutError(f"nothing was heard for {2 * SILENCE:g} s")
                asked = True
                await connection.send_command("PING", check_health=False)
                continue
            asked = False
            if len(message) == 3 and message[0] == b"message":
                self._take(message[1], message[2])
            taken += 1
            if taken % AT_ONCE == 0:  # a full buffer is read without ever waiting
                await asyncio.sleep(0)

    def _take(self, channel: bytes, data: bytes) -> None:
        try:
            self._channels[channel](data)
        except Exception:
            if self._limit.admit("heard", channel.decode(errors="replace")) is not None:
                log.exception("a message on %r could not be taken", channel)


def refuse(answer: asyncio.Future[Any] | None, why: str) -> None:
    if answer is not None and not answer.done():
        answer.set_exception(Away(why))
