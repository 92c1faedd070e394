"""A gateway that is started oddly."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.attack.crowd import crowd
from tests.attack.gateway import config_of
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE, closing, ready, terminated
from tests.support.scripted_engine import ScriptedEngine


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
async def test_without_standard_streams(tmp_path, processes, closed):
    """[closed_stderr] It aborted when it closed the socket that had got number 1 or 2, at its start or at its end."""
    url = f"http://127.0.0.1:{(port := free_in_a_row(1))}"
    async with ScriptedEngine() as engine, httpx.AsyncClient(trust_env=False, verify=False) as client:
        path = tmp_path / "plugins.yaml"
        path.write_text(json.dumps(config_of([engine.url], listen={"port": port})))
        process = processes.start("gateway", closing(closed, [*KVGATE, "serve", str(path)]))
        await ready(process, url, client)
        assert (await crowd(url, requests=200, clients=50)).ended == {"ok": 200}
        assert await terminated(process) == 0
