"""Covers: gateway/workers/service.py, gateway/tenants/limits_table.py, gateway/tenancy.py.

Two workers, as processes: they have one set of limits, and each tells the same of what was used.
"""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.support.engines import simulated
from tests.workers.conftest import CHAT, PATH, document, started

LIMIT, CONNECTIONS, EACH = 30, 16, 6


@pytest.mark.slow
async def test_two_workers_let_through_what_one_would_and_tell_the_same(tmp_path, processes):
    async with simulated() as engine, httpx.AsyncClient(timeout=60) as client:
        content = document(engine.url)
        content["tenants"] = {
            "header": "x-tenant",
            "trusted": True,
            "tenants": [{"name": "red", "limits": {"requests_per_minute": LIMIT}}],
        }
        service = await started(processes, tmp_path, content, client)
        red = {"x-tenant": "red"}

        async def ask() -> list[int]:
            async with httpx.AsyncClient(timeout=60, headers=red) as one:  # each connection is one worker's
                replies = [await one.post(f"{service.url}{PATH}", json=CHAT | {"max_tokens": 1}) for _ in range(EACH)]
            return [reply.status_code for reply in replies]

        began = time.monotonic()
        statuses = [status for found in await asyncio.gather(*[ask() for _ in range(CONNECTIONS)]) for status in found]
        took = time.monotonic() - began
        passed = statuses.count(200)
        assert set(statuses) == {200, 429}
        assert LIMIT <= passed <= LIMIT + took * LIMIT / 60 + 1

        async def used() -> int:
            async with httpx.AsyncClient(timeout=60, headers=red) as one:
                found = (await one.get(f"{service.url}/v1/usage")).json()
            return int(found["usage"]["total"]["requests"])

        assert await asyncio.gather(*[used() for _ in range(8)]) == [passed] * 8
        assert await service.metric("kvgate_limit_refused_total") == len(statuses) - passed
