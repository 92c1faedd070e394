"""Services that are started again on their port, and clients that notice nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from gateway.commands.processes import START_SECONDS, Process, Processes, offline
from tests.support.processes import KVGATE
from tests.support.wait import eventually

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 2}


def write(folder: Path, url: str, port: int, **listen: Any) -> Path:
    path = folder / "plugins.yaml"
    document = {
        "listen": {"port": port, "admin": f"127.0.0.1:{port + 1}", "lame_duck": 1} | listen,
        "models": [{"name": "sim", "endpoints": [{"url": url}]}],
    }
    path.write_text(json.dumps(document))
    return path


def serve(processes: Processes, config: Path, name: str = "gateway") -> Process:
    return processes.start(name, [*KVGATE, "serve", str(config)], env=offline(os.environ))


class Load:
    """Clients that send one request after the other, some on kept connections and some each on a new one.

    ``failed``: what became of a request that was not answered with 200. ``refused``: connections that were refused.
    """

    def __init__(self, url: str) -> None:
        self.url = f"{url}/v1/chat/completions"
        self.done = 0
        self.failed: list[str] = []
        self.refused = 0
        self._over = asyncio.Event()

    async def visit(self, *, kept: bool, stream: bool) -> None:
        body = CHAT | {"stream": stream}
        limits = httpx.Limits(max_keepalive_connections=1 if kept else 0)
        async with httpx.AsyncClient(timeout=60, verify=False, limits=limits, trust_env=False) as client:
            while not self._over.is_set():
                try:
                    reply = await client.post(self.url, json=body)
                except httpx.ConnectError:
                    self.refused += 1
                    return
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                else:
                    if reply.status_code != 200 or (stream and "[DONE]" not in reply.text):
                        self.failed.append(f"{reply.status_code} {reply.text[-200:]}")
                    self.done += 1

    async def more(self, count: int) -> None:
        """Wait until so many more requests have been answered."""
        wanted = self.done + count
        await eventually(lambda: self.done >= wanted or self.failed, f"{count} more answers", within=START_SECONDS)

    def end(self) -> None:
        self._over.set()


@contextlib.asynccontextmanager
async def load(url: str) -> AsyncIterator[Load]:
    """Eight clients, of which half keep their connections, and half stream."""
    clients = Load(url)
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(clients.visit(kept=number % 2 == 0, stream=number % 4 < 2))
        try:
            yield clients
        finally:
            clients.end()


def is_dead(pid: int) -> bool:
    """It has ended, and nobody has asked for its exit status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
