"""A gateway that is started oddly."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys

import httpx
import pytest

from gateway.commands.processes import START_SECONDS
from tests.attack.crowd import crowd
from tests.attack.gateway import STOP, config_of
from tests.support.ports import free_in_a_row
from tests.support.scripted_engine import ScriptedEngine


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
async def test_without_standard_streams(tmp_path, closed):
    """[closed_stderr] It aborted when it closed the socket that had got number 1 or 2, at its start or at its end."""
    port = free_in_a_row(1)
    url = f"http://127.0.0.1:{port}"
    async with ScriptedEngine() as engine, httpx.AsyncClient(trust_env=False) as client:
        path = tmp_path / "plugins.yaml"
        path.write_text(json.dumps(config_of([engine.url], listen={"port": port})))
        command = shlex.join([sys.executable, "-m", "gateway.cli", "serve", str(path)])
        child = await asyncio.create_subprocess_exec(
            "sh", "-c", f"exec {command} {closed}", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )

        async def ready() -> bool:
            assert child.returncode is None, f"it ended with {child.returncode}"
            try:
                return (await client.get(f"{url}/readyz")).status_code == 200
            except httpx.TransportError:
                return False

        try:
            async with asyncio.timeout(START_SECONDS):
                while not await ready():  # noqa: ASYNC110 -- it is another process
                    await asyncio.sleep(0.02)
            assert (await crowd(url, requests=200, clients=50)).ended == {"ok": 200}
            child.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(child.wait(), STOP) == 0
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
