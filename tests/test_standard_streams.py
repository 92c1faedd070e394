"""A process whose standard streams are closed serves, and ends as any other."""

from __future__ import annotations

import json
import os

import httpx
import pytest

from tests.support.chat import CHAT
from tests.support.engines import engines
from tests.support.examples import slowly
from tests.support.ports import free_in_a_row
from tests.support.processes import CLOSED, KVGATE, closing, ended, ready, terminated

*SOME, ALL = CLOSED
EACH = [ALL, *slowly(*SOME)]


@pytest.mark.parametrize("closed", EACH)
async def test_it_serves_and_ends_with_0(tmp_path, processes, closed):
    url = f"http://127.0.0.1:{(port := free_in_a_row(1))}"
    async with engines(1) as (server,), httpx.AsyncClient(timeout=30, verify=False) as client:
        path = tmp_path / "plugins.yaml"
        listen = {"host": "127.0.0.1", "port": port, "admin": "127.0.0.1:0", "lame_duck": 0}
        path.write_text(json.dumps({"listen": listen, "models": [{"name": "sim", "endpoints": [{"url": server.url}]}]}))
        process = processes.start("gateway", closing(closed, [*KVGATE, "serve", str(path)]))
        await ready(process, url, client)
        for number in (0, 1, 2):
            assert not os.readlink(f"/proc/{process.pid}/fd/{number}").startswith("socket:")
        assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
        assert await terminated(process) == 0


@pytest.mark.parametrize("closed", EACH)
async def test_other_commands_end_as_they_do(processes, closed):
    assert await ended(processes.start("check", closing(closed, [*KVGATE, "check", "/nowhere.yaml"]))) == 2
