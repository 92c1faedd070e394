"""Commands as processes of their own: how they are started, what they say, and how they end.

They are started by the fixture ``processes`` (tests/conftest.py), which leaves nothing of them behind.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Sequence

import httpx

from gateway.commands.processes import START_SECONDS, Process
from tests.support.wait import eventually

KVGATE = (sys.executable, "-m", "gateway.cli")

CLOSED = ("2>&-", ">&-", ">&- 2>&-", "0<&-", "0<&- >&- 2>&-")
"""Standard streams that a service manager may leave closed, in a shell's words."""


def closing(streams: str, command: Sequence[str]) -> list[str]:
    """``command`` in a shell that closes these streams and becomes the command's process."""
    return ["sh", "-c", f"exec {shlex.join(command)} {streams}"]


def lines(process: Process) -> list[str]:
    """Of its log."""
    return process.log.read_text().splitlines()


def find(process: Process, pattern: str) -> str | None:
    """What ``pattern``'s group captures in the first line of its log in which it is found."""
    return next((found[1] for line in lines(process) if (found := re.search(pattern, line))), None)


async def told(process: Process, pattern: str) -> str:
    """The same, once it is there."""

    def seen() -> str | None:
        running = process.running  # before we look: its last line may be the one
        found = find(process, pattern)
        assert found is not None or running, f"it ended before it said {pattern}: {process.tail()}"
        return found

    await eventually(seen, f"it says {pattern}", within=START_SECONDS)
    return seen() or ""


async def url_of(process: Process) -> str:
    """Where a gateway serves its clients; its log is text or JSON."""
    return await told(process, r"serves on (https?://[\d.:]+)")


async def ended(process: Process) -> int:
    """Its exit status, once it has ended."""
    await eventually(lambda: not process.running, "it ends", within=START_SECONDS)
    assert process.child.returncode is not None
    return process.child.returncode


async def terminated(process: Process) -> int:
    """Its exit status after SIGTERM."""
    process.child.terminate()
    return await ended(process)


async def ready(process: Process, url: str, client: httpx.AsyncClient) -> None:
    """Wait until the gateway at ``url`` has a usable endpoint: of one whose log nobody can read."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            assert process.running, f"it ended with {process.child.returncode}"
            try:
                if (await client.get(f"{url}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:  # it does not listen yet
                pass
            await asyncio.sleep(0.05)
