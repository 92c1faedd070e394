"""An engine that registers itself at a service of several workers is known to all of them, and to those that start
later."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from gateway.commands.processes import START_SECONDS
from tests.support.engines import simulated
from tests.support.wait import until
from tests.workers.conftest import CHAT, PATH, Service, document, started


@pytest.mark.slow
async def test_all_workers_know_what_registers_itself(folder, processes):
    content = document() | {"fleet": {"scrape": {"interval": 0.05}}}
    content["models"][0]["endpoints"] = []
    async with httpx.AsyncClient(timeout=300, verify=False) as client, simulated() as engine:
        service = await started(processes, folder, content, client)
        await until(service.is_up, within=START_SECONDS)
        registered = {"url": engine.url, "name": "late", "ttl": 3600}
        told = (await service.ask("POST", "/endpoints", json=registered))["endpoint"]
        assert (told["name"], told["url"]) == ("late", engine.url)
        assert await statuses(service) == {200}
        before = service.pids()
        os.kill(before[1], signal.SIGKILL)
        await service.replaced(1, before)
        assert await statuses(service) == {200}
        refused = await client.post(f"{service.admin}/endpoints", json={"url": "http://a:1", "ttl": 0})
        assert (refused.status_code, "ttl must be" in refused.text) == (400, True)
        await service.ask("DELETE", "/endpoints/late")
        assert await statuses(service) == {503}
        gone = await client.delete(f"{service.admin}/endpoints/late")
        assert gone.status_code == 404


async def statuses(service: Service) -> set[int]:
    """Of requests on connections of their own: each may be any worker's."""
    found = set()
    for _ in range(24):
        async with httpx.AsyncClient(timeout=300, verify=False) as own:
            found.add((await own.post(f"{service.url}{PATH}", json=CHAT)).status_code)
    return found
