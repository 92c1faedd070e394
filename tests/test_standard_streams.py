"""A process whose standard streams are closed serves, and ends as any other."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys

import httpx
import pytest

from tests.support.chat import CHAT
from tests.support.engines import engines
from tests.support.ports import free_in_a_row

CLOSED = ["2>&-", ">&-", ">&- 2>&-", "0<&-", "0<&- >&- 2>&-"]


async def process(command: str) -> asyncio.subprocess.Process:
    """In a shell that closes what ``command`` says, and becomes the process."""
    return await asyncio.create_subprocess_exec(
        "sh", "-c", f"exec {shlex.quote(sys.executable)} {command}",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("closed", CLOSED)
async def test_it_serves_and_ends_with_0(tmp_path, closed):
    port = free_in_a_row(1)
    async with engines(1) as (server,), httpx.AsyncClient(timeout=30) as client:
        path = tmp_path / "plugins.yaml"
        listen = {"host": "127.0.0.1", "port": port, "admin": "127.0.0.1:0"}
        path.write_text(json.dumps({"listen": listen, "models": [{"name": "sim", "endpoints": [{"url": server.url}]}]}))
        child = await process(f"-m gateway.cli serve {shlex.quote(str(path))} {closed}")
        url = f"http://127.0.0.1:{port}"

        async def ready() -> bool:
            assert child.returncode is None, f"it ended with {child.returncode}"
            try:
                return (await client.get(f"{url}/readyz")).status_code == 200
            except httpx.TransportError:
                return False

        try:
            async with asyncio.timeout(60):
                while not await ready():  # noqa: ASYNC110 -- it is another process
                    await asyncio.sleep(0.02)
            for number in (0, 1, 2):
                assert not os.readlink(f"/proc/{child.pid}/fd/{number}").startswith("socket:")
            assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
            child.send_signal(signal.SIGTERM)
            assert await child.wait() == 0
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


@pytest.mark.parametrize("closed", CLOSED)
async def test_other_commands_end_as_they_do(closed):
    child = await process(f"-m gateway.cli check /nowhere.yaml {closed}")
    assert await child.wait() == 2
