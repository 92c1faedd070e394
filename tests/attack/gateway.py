"""A whole ``kvgate serve`` as a process, and what can be seen of it from outside: memory, descriptors, log, exit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.commands.processes import START_SECONDS, Process, offline
from tests.attack.stall import Stall, watching
from tests.support.processes import KVGATE, told, url_of

MIB = 1024 * 1024

STOP = 20.0
QUIET = {"requests": False}
"""Of ``log``: no line for each request."""


@dataclass
class Attacked:
    """A running gateway. ``url``: its clients' listener; ``admin_url``: its operators'. ``stall``: the
    longest that /livez has kept anybody waiting since the start, or ``stall.forget()``.
    """

    process: Process
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
        return [line for line in self.process.log.read_text().splitlines() if re.search(pattern, line)]

    def tell(self, number: signal.Signals) -> None:
        self.process.child.send_signal(number)

    async def paused(self, seconds: float) -> None:
        """Stop the process for so long, as a machine that is suspended or moved does."""
        self.tell(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)  # what is tried here is how long it lasts
        finally:
            self.tell(signal.SIGCONT)

    async def stop(self) -> int:
        """End it as a service manager does; its exit code."""
        return await asyncio.to_thread(self.process.terminate, STOP)

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
        deadline = time.monotonic() + START_SECONDS
        while (found := await self.usable()) != count:
            assert time.monotonic() < deadline, f"{found} of {count} endpoints are usable: {self.process.tail()}"
            await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Wait until nothing is booked anywhere: no reservation has been left behind."""
        deadline = time.monotonic() + START_SECONDS
        while busy := [one["name"] for one in await self.endpoints() if one["running"] or one["kv_tokens"]]:
            assert time.monotonic() < deadline, f"still booked: {busy}"
            await asyncio.sleep(0.02)

    def unharmed(self) -> None:
        """It lives, and has logged no defect of its own."""
        assert self.process.running, self.process.tail()
        assert not self.logged("Traceback|defect"), self.logged("Traceback|defect")

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.process.pid}")

    def _memory(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB$", (self._proc / "status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


def config_of(urls: Sequence[str], **changes: Any) -> dict[str, Any]:
    """One model named ``sim`` on engines at ``urls``; ``changes``: the file's other keys, ``model``: the model's."""
    model = {"name": "sim", "endpoints": [{"url": url} for url in urls]} | changes.pop("model", {})
    listen = {"host": "127.0.0.1", "port": 0, "admin": "127.0.0.1:0", "grace": 5, "lame_duck": 0} | changes.pop(
        "listen", {}
    )
    return {"listen": listen, "log": QUIET, "models": [model]} | changes


@contextlib.asynccontextmanager
async def attacked(folder: Path, *urls: str, ready: int | None = None, **changes: Any) -> AsyncIterator[Attacked]:
    """A gateway before the engines at ``urls``, with a configuration file in ``folder``. ``changes``: as for
    ``config_of``. ``ready``: endpoints that it waits for; None: all. No process is left behind."""
    path = folder / "plugins.yaml"
    path.write_text(json.dumps(config_of(urls, **changes), indent=1))  # JSON is YAML
    command = [*KVGATE, "serve", str(path)]
    process = Process.start(command, log=folder / "gateway.log", env=offline(os.environ))
    try:
        url = await url_of(process)
        admin_url = await told(process, r"metrics on (http://[\d.:]+)")
        async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as client:
            with watching(url) as stall:
                gateway = Attacked(process, stall, url, admin_url, client)
                await gateway.all_usable(len(urls) if ready is None else ready)
                stall.forget()
                yield gateway
    finally:
        await asyncio.to_thread(process.kill)
