"""A whole ``kvgate serve`` as a process, and what can be seen of it from outside: memory, descriptors, log, exit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.attack.stall import Stall, watching
from tests.support.wait import eventually

MIB = 1024 * 1024
START = 60.0
"""Seconds for a process to serve: a cold import of all it needs takes some of them on a busy machine."""

STOP = 20.0
QUIET = {"requests": False}
"""Of ``log``: no line for each request."""


@dataclass
class Attacked:
    """A running gateway. ``url``: its clients' listener; ``admin_url``: its operators'. ``lines``: what it has logged
    since its start. ``stall``: the longest that /livez has kept anybody waiting since the start, or ``stall.forget()``.
    """

    child: asyncio.subprocess.Process
    lines: list[str]
    stall: Stall
    url: str
    admin_url: str
    client: httpx.AsyncClient

    def rss(self) -> int:
        """Bytes of memory that it has now."""
        return self._memory("VmRSS")

    def peak(self) -> int:
        """The most that it has had since its start, or ``forget_peak``."""
        return self._memory("VmHWM")

    def forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def cpu(self) -> float:
        """Seconds of CPU that it has used, all threads together."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return len(os.listdir(self._proc / "fd"))

    def logged(self, pattern: str) -> list[str]:
        """The lines of its log in which ``pattern`` is found."""
        return [line for line in self.lines if re.search(pattern, line)]

    def tell(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    async def paused(self, seconds: float) -> None:
        """Stop the process for so long, as a machine that is suspended or moved does."""
        self.tell(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)  # what is tried here is how long it lasts
        finally:
            self.tell(signal.SIGCONT)

    async def stop(self) -> int:
        """End it as a service manager does; its exit code."""
        self.tell(signal.SIGTERM)
        return await asyncio.wait_for(self.child.wait(), STOP)

    async def get(self, path: str) -> Any:
        """What an operator's route answers, as JSON."""
        return (await self.client.get(self.admin_url + path)).json()

    async def endpoints(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get("/endpoints"))["endpoints"]
        return found

    async def metrics(self) -> str:
        return (await self.client.get(f"{self.admin_url}/metrics")).text

    async def usable(self) -> int:
        """Endpoints that it would send a request to; 0 while it does not answer."""
        try:
            ready = (await self.client.get(f"{self.url}/readyz")).json()
        except (httpx.HTTPError, ValueError):
            return 0
        return sum(model["usable"] for model in ready["models"].values())

    async def all_usable(self, count: int) -> None:
        """Wait until ``count`` endpoints are."""
        deadline = time.monotonic() + START
        while (found := await self.usable()) != count:
            assert time.monotonic() < deadline, f"{found} of {count} endpoints are usable: {''.join(self.lines[-20:])}"
            await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Wait until nothing is booked anywhere: no reservation has been left behind."""
        deadline = time.monotonic() + START
        while busy := [one["name"] for one in await self.endpoints() if one["running"] or one["kv_tokens"]]:
            assert time.monotonic() < deadline, f"still booked: {busy}"
            await asyncio.sleep(0.02)

    def unharmed(self) -> None:
        """It lives, and has logged no defect of its own."""
        assert self.child.returncode is None, self.lines[-20:]
        assert not self.logged("Traceback|defect"), self.logged("Traceback|defect")

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.child.pid}")

    def _memory(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB$", (self._proc / "status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


def config_of(urls: Sequence[str], **changes: Any) -> dict[str, Any]:
    """One model named ``sim`` on engines at ``urls``; ``changes``: the file's other keys, ``model``: the model's."""
    model = {"name": "sim", "endpoints": [{"url": url} for url in urls]} | changes.pop("model", {})
    listen = {"host": "127.0.0.1", "port": 0, "admin": "127.0.0.1:0", "grace": 5} | changes.pop("listen", {})
    return {"listen": listen, "log": QUIET, "models": [model]} | changes


@contextlib.asynccontextmanager
async def attacked(folder: Path, *urls: str, ready: int | None = None, **changes: Any) -> AsyncIterator[Attacked]:
    """A gateway before the engines at ``urls``, with a configuration file in ``folder``. ``changes``: as for
    ``config_of``. ``ready``: endpoints that it waits for; None: all. No process is left behind."""
    path = folder / "plugins.yaml"
    path.write_text(json.dumps(config_of(urls, **changes), indent=1))  # JSON is YAML
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "serve", str(path),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    lines: list[str] = []
    reader = asyncio.get_running_loop().create_task(_read(child, lines))
    try:
        url = await _told(child, lines, r"serves on (http://[\d.:]+)")
        admin_url = await _told(child, lines, r"metrics on (http://[\d.:]+)")
        async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as client:
            with watching(url) as stall:
                gateway = Attacked(child, lines, stall, url, admin_url, client)
                await gateway.all_usable(len(urls) if ready is None else ready)
                stall.forget()
                yield gateway
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGCONT)
            child.kill()
        await child.wait()
        await reader
        child._transport.close()  # type: ignore[attr-defined]


async def _read(child: asyncio.subprocess.Process, lines: list[str]) -> None:
    assert child.stderr is not None
    while line := await child.stderr.readline():
        lines.append(line.decode(errors="replace"))


async def _told(child: asyncio.subprocess.Process, lines: list[str], pattern: str) -> str:
    """What ``pattern`` captures in the first line of the log in which it is found."""

    def found() -> str | None:
        assert child.returncode is None, f"it did not start: {''.join(lines)}"
        return next((match[1] for line in lines if (match := re.search(pattern, line))), None)

    await eventually(found, f"{pattern} in {lines}", within=START)
    return found() or ""
