"""A gateway in a process of its own that is killed: what its tenants used is known to the next one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import httpx

from gateway.commands.processes import offline
from gateway.tenants.directory import digest
from gateway.tenants.state_file import INTERVAL
from tests.support.engines import simulated
from tests.support.processes import KVGATE, ended, terminated, url_of
from tests.support.wait import eventually

KEY = "kvg-of-red"
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4}


async def test_a_budget_outlives_kill_9(tmp_path, processes):
    async with simulated(answer_tokens=4) as server:
        config = {
            "listen": {"port": 0, "admin": "127.0.0.1:0", "lame_duck": 0},
            "models": [{"name": "sim", "endpoints": [{"url": server.url}]}],
            "tenants": {
                "state": "used.json",
                "tenants": [{"name": "red", "budget": {"amount": 100000, "per": "total"}}],
                "keys": [{"id": "ci", "sha256": digest(KEY).hex(), "tenant": "red"}],
            },
        }
        path = tmp_path / "plugins.yaml"
        path.write_text(json.dumps(config))
        command = [*KVGATE, "serve", str(path)]
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(timeout=30, headers=headers, verify=False) as client:

            async def told(url: str) -> float:
                return float((await client.get(f"{url}/v1/usage")).json()["budget"]["spent"])

            first = processes.start("first", command, env=offline(os.environ))
            url = await url_of(first)
            for _ in range(5):
                assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
            before = await told(url)
            assert before > 0
            await eventually(lambda: kept(tmp_path) == before, "the file has what was used", within=INTERVAL + 20)
            assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
            at_the_end = await told(url)
            first.child.send_signal(signal.SIGKILL)
            assert await ended(first) == -signal.SIGKILL

            second = processes.start("second", command, env=offline(os.environ))
            url = await url_of(second)
            assert before <= await told(url) <= at_the_end, "at most what came since the last write is lost"
            assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
            after = await told(url)
            assert await terminated(second) == 0
            assert kept(tmp_path) == after, "one that ends by itself loses nothing"
        assert KEY not in (tmp_path / "used.json").read_text()


def kept(folder: Path) -> float:
    """Tokens of the tenant that are in the file, of today."""
    account = json.loads((folder / "used.json").read_text())["accounts"].get("tenant:red")
    return 0.0 if account is None else float(account["today"]["prompt"] + account["today"]["output"])
