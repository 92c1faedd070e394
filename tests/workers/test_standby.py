"""Covers: gateway/flow/standby.py, gateway/fleet/waker.py.

A service of two workers whose model has no engine yet: each worker's requests wait, and hear of the first engine from
the worker that asks it.
"""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.commands.processes import START_SECONDS
from tests.support.engines import engines, simulated
from tests.support.ports import free_in_a_row
from tests.support.wait import until
from tests.workers.conftest import CHAT, PATH, document, started


@pytest.mark.slow
async def test_the_first_engine_releases_the_requests_of_all_workers(folder, processes):
    port, count = free_in_a_row(), 12
    content = document(f"http://127.0.0.1:{port}") | {"fleet": {"scrape": {"interval": 0.05}}}
    content["models"][0]["limits"] = {"no_endpoint_timeout": 300}
    async with httpx.AsyncClient(timeout=300, verify=False) as client:
        service = await started(processes, folder, content, client)
        await until(service.is_up, within=START_SECONDS)

        async def ask() -> int:
            async with httpx.AsyncClient(timeout=300, verify=False) as own:  # its connection may be any worker's
                return (await own.post(f"{service.url}{PATH}", json=CHAT)).status_code

        sent = [asyncio.create_task(ask()) for _ in range(count)]

        async def all_wait() -> bool:
            return await service.metric("kvgate_standing_by_requests") == count

        await until(all_wait, within=START_SECONDS)
        async with simulated(where={"port": port}):
            assert await asyncio.gather(*sent) == [200] * count


@pytest.mark.slow
async def test_the_requests_of_all_workers_wake_one_engine(folder, processes):
    async with engines(2) as servers, httpx.AsyncClient(timeout=300, verify=False) as client:
        content = document(*(server.url for server in servers)) | {"fleet": {"scrape": {"interval": 0.05}}}
        content["models"][0] |= {"limits": {"no_endpoint_timeout": 300}, "wake": "on-demand"}
        for server in servers:
            await server.service.sleep(1, "abort")
        service = await started(processes, folder, content, client)
        await until(service.is_up, within=START_SECONDS)

        async def ask() -> int:
            async with httpx.AsyncClient(timeout=300, verify=False) as own:
                return (await own.post(f"{service.url}{PATH}", json=CHAT)).status_code

        assert await asyncio.gather(*[ask() for _ in range(12)]) == [200] * 12
        assert sum(one.path == "/wake_up" for server in servers for one in server.received) == 1
