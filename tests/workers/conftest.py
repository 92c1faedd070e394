"""A service of several workers, as a process with its own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.commands.processes import START_SECONDS, Process, Processes, offline
from tests.support.processes import KVGATE, lines, told, url_of
from tests.support.wait import eventually, until

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4}
PATH = "/v1/chat/completions"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short name: a Unix socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="kvgate-test-") as made:
        yield Path(made)


@dataclass
class Service:
    """``url``: the clients'; ``admin``: the operators'."""

    process: Process
    config: Path
    url: str
    admin: str
    client: httpx.AsyncClient
    workers: int

    def pids(self) -> dict[int, int]:
        """The workers' processes by number, the last ones."""
        found = {}
        for line in lines(self.process):
            if " is process " in line:
                words = line.partition("worker ")[2].split()
                found[int(words[0])] = int(words[3])
        return found

    async def chat(self, client: httpx.AsyncClient, request_id: str = "", **changes: Any) -> httpx.Response:
        headers = {"x-request-id": request_id} if request_id else {}
        return await client.post(f"{self.url}{PATH}", json=CHAT | changes, headers=headers)

    async def ask(self, method: str, path: str, **how: Any) -> Any:
        """What the admin listener answers, which must be good."""
        reply = await self.client.request(method, f"{self.admin}{path}", **how)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        text = (await self.client.get(f"{self.admin}/metrics")).text
        rows = [line for line in text.splitlines() if line.startswith(name) and line[len(name)] in "{ "]
        return sum(float(line.rpartition(" ")[2]) for line in rows)

    async def is_up(self) -> bool:
        """All workers serve."""
        assert self.process.running, self.process.tail()
        return await self.metric("kvgate_worker_up") == self.workers

    async def replaced(self, number: int, before: Mapping[int, int]) -> None:
        """This worker's process is another than it was before, and all serve."""
        await eventually(lambda: self.pids()[number] != before[number], within=START_SECONDS)
        await until(self.is_up, within=START_SECONDS)


def alive(pid: int) -> bool:
    """Whether the process runs: not one that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def document(*urls: str, **listen: Any) -> dict[str, Any]:
    return {
        "listen": {"port": 0, "admin": "127.0.0.1:0", "grace": 20, "lame_duck": 0, "workers": 2} | listen,
        "models": [{"name": "sim", "endpoints": [{"url": url} for url in urls]}],
        "log": {"requests": False},  # tests read the log again and again
    }


async def started(
    processes: Processes, folder: Path, content: Mapping[str, Any], client: httpx.AsyncClient, **environ: str
) -> Service:
    """The service of a configuration, once all its workers serve."""
    config = folder / "plugins.yaml"
    config.write_text(json.dumps(content))
    command = [*KVGATE, "serve", str(config)]
    process = processes.start("gateway", command, env=offline(os.environ) | {"TMPDIR": str(folder)} | environ)
    admin = await told(process, r"metrics on (http://[\d.:]+)/metrics")
    return Service(process, config, await url_of(process), admin, client, content["listen"]["workers"])


async def gone(pids: Mapping[int, int]) -> None:
    await eventually(lambda: not any(map(alive, pids.values())), "the workers end", within=START_SECONDS)
