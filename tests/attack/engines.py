"""What engines do on demand that fail, and the repository's simulator as processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.commands.processes import Process, offline
from tests.support.chat import DONE, ROLE, WORD
from tests.support.scripted_engine import WORDS, Post, answers
from tests.support.wire import STREAM_HEAD, Connection, chunked

Fault = Callable[[Connection], Awaitable[None]]
"""What is done to a connection in place of, or in the middle of, a good answer."""


def failing(chooses: Callable[[int], Fault | None] = lambda number: None, hold: float = 0.0) -> Post:
    """Good answers, but where ``chooses``, told the number of a request (from 0), says what fails of it. ``hold``:
    seconds before an answer's head."""
    numbers = itertools.count()

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        fault = chooses(next(numbers))
        if hold:
            await asyncio.sleep(hold)
        if fault is not None:
            await fault(connection)
        else:
            await answers(connection, head, body)

    return post


# Faults


async def closes(connection: Connection) -> None:
    """Before a byte of the answer."""
    connection.writer.close()


async def breaks_head(connection: Connection) -> None:
    await connection.say(STREAM_HEAD[:40])
    connection.reset()


async def breaks_after_head(connection: Connection) -> None:
    await connection.say(STREAM_HEAD)
    connection.reset()


async def breaks_stream(connection: Connection) -> None:
    """After its first output: the client has a part of the answer."""
    await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
    await asyncio.sleep(0)
    connection.reset()


async def says_garbage(connection: Connection) -> None:
    await connection.say(b"\x16\x03\x01 no HTTP\r\n\r\n")
    connection.writer.close()


async def floods_1xx(connection: Connection) -> None:
    """Informational answers, and then a good one."""
    await connection.say(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 40)
    await connection.say(STREAM_HEAD + chunked(ROLE, *[WORD] * WORDS, DONE))


async def hangs(connection: Connection) -> None:
    await connection.gone()
    connection.writer.close()


def in_every(count: int, fault: Fault) -> Callable[[int], Fault | None]:
    """``fault`` for one request in ``count``, evenly."""
    return lambda number: fault if number % count == count - 1 else None


@dataclass
class Simulated:
    """A simulated engine as a process, always at the same address."""

    flags: tuple[str, ...]
    process: Process | None = None
    url: str = ""

    async def start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "simulator", "--port", port, *self.flags]
        self.process = Process.start(command, log=Path(os.devnull), env=offline(os.environ), talks=True)
        self.url = json.loads(await asyncio.to_thread(self.process.line))["url"]

    async def kill(self) -> None:
        """``kill -9``."""
        if self.process is not None:
            await asyncio.to_thread(self.process.kill)
            self.process = None


@contextlib.asynccontextmanager
async def simulated(count: int, *flags: str) -> AsyncIterator[list[Simulated]]:
    """``count`` simulators, each with ``flags``; those that were started again are ended as well."""
    engines = [Simulated(flags) for _ in range(count)]
    try:
        await asyncio.gather(*(one.start() for one in engines))
        yield engines
    finally:
        await asyncio.gather(*(one.kill() for one in engines))


def drips(words: int, every: float) -> Fault:
    """A good stream of so many ``words``, one ``every`` some seconds."""

    async def fault(connection: Connection) -> None:
        await connection.say(STREAM_HEAD + chunked(ROLE, end=False))
        for _ in range(words):
            await asyncio.sleep(every)
            await connection.say(chunked(WORD, end=False))
        await connection.say(chunked(DONE))

    return fault
