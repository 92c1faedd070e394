"""The link to a server that is kept: what is asked of it, and what is heard on its channels.

Commands wait in a bounded list and go out together; the next ones go when these are answered, so that nothing piles up
in a socket. Whatever fails ends the connection, all that waits fails at once, and it is made anew, with growing pauses.
No request waits for any of it without a limit of its own.

Each second the server is asked whether it leads. One that was made a replica of another still publishes and answers,
but whoever has found the new one is not heard there, and nothing can be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any

from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.framework import Clock
from gateway.valkey.client import Away, Refused, connect, failures
from gateway.valkey.connection import Answer, Connection, refuse

log = logging.getLogger("kvgate.valkey")

ANSWER = 3.0
"""Seconds within which the server answers, or is connected to; above that it is taken for away. A slow server answers
within half a second, and its failover takes longer whatever is waited for."""

LOOK = 1.0
"""Seconds between two looks at whether the server is there and leads: who asks next is told at once that it is away."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds until the server is tried again; each time twice as long, up to the second, and up to a fifth more by chance.
All is whole again within a second of its return; two attempts a second cost it nothing."""

MOST_WAITING = 1024
"""Commands that may wait for the server. Each is some hundred bytes to 100 KB, and what is told is told anew."""

MOST_TOGETHER = 128
"""Commands that go out together: they take the loop about 2 ms."""

QUESTIONS = (("ROLE",), ("INFO", "replication"), ("PING",))
"""What a look asks: the next one where the server's rules for its users refuse one. The last says only that it is
there."""

Heard = Callable[[bytes], None]


class Link:
    """``url``: of the server. ``channels``: what is heard there, and who is told of it: each message once, in the order
    of a channel, in the loop. ``chance``: of the pauses. Raises ConfigError as ``connect`` does.

    ``up``: it is connected. ``problem``: why not, in words. ``outages``: how often it was lost.
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
        self._waiting: list[tuple[bytes, Answer]] = []
        self._planned = False
        self._question = 0
        self._connection: Connection | None = None
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
        answer = self._put(command)
        name = str(command[0])
        answer.add_done_callback(lambda answer: self._told(name, answer))
        return True

    async def ask(self, *command: Any) -> Any:
        """The answer to a command: bytes, a number, a list or None. Raises Away, at once where the server is away; it
        answers within ``ANSWER`` or is taken for away. Whoever waits on a request's way sets a shorter limit."""
        if not self.up:
            raise Away(self.problem)
        if len(self._waiting) >= MOST_WAITING:
            raise Away(f"{MOST_WAITING} commands wait for the server")
        return await self._put(command)

    def _put(self, command: tuple[Any, ...]) -> Answer:
        from hiredis import pack_command

        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        self._waiting.append((pack_command(command), answer))
        if not self._planned and self._connection is not None and not self._connection.is_busy:
            self._planned = True
            loop.call_soon(self._send)
        return answer

    def _send(self) -> None:
        """What waits goes out, if nothing is under way."""
        self._planned = False
        if self._connection is not None and self._waiting and not self._connection.is_busy:
            together, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            self._connection.send(together)

    def _told(self, name: str, answer: Answer) -> None:
        if answer.cancelled() or not isinstance(error := answer.exception(), Refused):
            return
        if (count := self._limit.admit("refused", name)) is not None:
            log.warning("Valkey refuses %s: %s%s", name, error, left_out(count))

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._live()
            except failures() as error:
                if self.up:
                    pause = FIRST_PAUSE
                late = f"no answer within {ANSWER:g} s"
                self._lose(late if isinstance(error, TimeoutError) else str(error) or type(error).__name__)
            except Exception as error:
                # A defect, here or in the client's package, must not end the link for ever.
                log.exception("the link to Valkey failed")
                self._lose(type(error).__name__)
            await asyncio.sleep(pause * self._chance.uniform(1.0, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _live(self) -> None:
        """Connect, and serve until something fails, which is raised."""
        connection = Connection(self._take, self._send)
        try:
            async with asyncio.timeout(ANSWER):
                await connection.open(self._url)
                self._connection, self._question = connection, 0
                await self._put(("HELLO", "3"))
                for channel in self._channels:
                    await self._put(("SUBSCRIBE", channel))
                await self._look()
            self._found()
            while True:
                await asyncio.wait((connection.ended,), timeout=LOOK)
                if connection.ended.done():
                    raise Away(connection.ended.result())
                async with asyncio.timeout(ANSWER):
                    await self._look()
        finally:
            self._connection = None
            await connection.leave()

    async def _look(self) -> None:
        """Raises Away if the server leads no more, and what ``ask`` raises."""
        while True:
            try:
                answer = await self._put(QUESTIONS[self._question])
            except Refused as error:
                if self._question + 1 == len(QUESTIONS):
                    raise
                self._question += 1
                if self._question + 1 == len(QUESTIONS) and self._limit.admit("role") is not None:
                    log.warning(
                        "whether Valkey leads cannot be known, since it refuses ROLE and INFO: %s. A failover that "
                        "keeps connections is noticed only when something is written",
                        error,
                    )
            else:
                if not may_lead(answer):
                    raise Away("it is the replica of another server")
                return

    def _found(self) -> None:
        log.info("connected to Valkey")
        self.up, self.problem = True, ""
        self._tell_watchers()

    def _lose(self, why: str) -> None:
        was_up, self.up, self.problem = self.up, False, why
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            refuse(answer, Away(why))
        if was_up:
            self.outages += 1
        if why != "closed" and (count := self._limit.admit("away")) is not None:
            log.warning("Valkey is away: %s; it is tried again%s", why, left_out(count))
        if was_up:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for changed in self._watchers:
            changed()

    def _take(self, channel: bytes, data: bytes) -> None:
        try:
            self._channels[channel](data)
        except Exception:
            if self._limit.admit("heard", channel.decode(errors="replace")) is not None:
                log.exception("a message on %r could not be taken", channel)


def may_lead(answer: object) -> bool:
    """Whether the answer to one of ``QUESTIONS`` is that of a server that leads, or does not say."""
    if isinstance(answer, list) and answer:
        return answer[0] not in (b"slave", b"replica", b"sentinel")
    text = answer if isinstance(answer, bytes) else str(answer).encode()
    return b"role:slave" not in text and b"role:replica" not in text
