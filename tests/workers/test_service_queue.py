"""Covers: gateway/workers/service.py, gateway/proxy/serving/host_queue.py.

Two workers, as processes, in front of an engine that has room for one request: they have one queue.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.engines import simulated
from tests.workers.conftest import PATH, Service, document, started

GREEDY = 64
SEEKING = 48
"""Connections that are opened at once to find some of each worker."""

NUMBERS = itertools.count()


@dataclass
class Line:
    """One connection, and so one worker's."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, url: str) -> Line:
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, tenant: str, request_id: str, tokens: int = 1) -> int:
        """The status of the answer."""
        messages = [{"role": "user", "content": f"{request_id} wait for me"}]
        body = json.dumps({"model": "sim", "messages": messages, "max_tokens": tokens}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nx-tenant: {tenant}\r\n"
        self.writer.write(f"{head}x-request-id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length: ")[2].split()[0])
        await self.reader.readexactly(length)
        return int(answer.split()[1])


async def lines_of(service: Service, count: int) -> dict[int, list[Line]]:
    """So many connections to each worker at least."""
    found: dict[int, list[Line]] = {0: [], 1: []}
    while min(map(len, found.values())) < count:
        opened = {f"find-{next(NUMBERS)}": await Line.to(service.url) for _ in range(SEEKING)}
        await asyncio.gather(*[line.ask("finder", name) for name, line in opened.items()])
        decisions = (await service.ask("GET", "/debug/decisions?limit=1000"))["decisions"]
        for decision in decisions:
            if (line := opened.get(decision["request_id"])) is not None:
                found[decision["worker"]].append(line)
    return found


def config(url: str) -> dict[str, Any]:
    content = document(url)
    model = content["models"][0]
    model["endpoints"] = [{"url": url, "kv_capacity_tokens": 16}]
    model["queue"] = {"max_wait": 120, "target": 100, "patience": 100}
    content["tenants"] = {"header": "x-tenant", "trusted": True}
    return content


@pytest.mark.slow
async def test_a_light_tenant_is_served_beside_a_greedy_one_at_the_other_worker_and_the_lead_may_die(
    tmp_path, processes
):
    async with simulated(step_seconds=0.01) as engine, httpx.AsyncClient(timeout=60, verify=False) as client:
        service = await started(processes, tmp_path, config(engine.url), client)
        lines = await lines_of(service, GREEDY)
        for worker in (0, 1):
            light = lines[1 - worker][0]
            greedy = [
                asyncio.create_task(line.ask("greedy", f"greedy-{worker}-{number}", tokens=2))
                for number, line in enumerate(lines[worker][:GREEDY])
            ]

            async def waits() -> bool:
                return await service.metric("kvgate_queue_requests") > GREEDY / 2

            async with asyncio.timeout(30):
                while not await waits():
                    assert not all(task.done() for task in greedy)
            for number in range(3):
                assert await light.ask("light", f"light-{worker}-{number}") == 200
            assert sum(task.done() for task in greedy) < GREEDY
            assert await asyncio.gather(*greedy) == [200] * GREEDY
        asked = (await service.ask("GET", "/debug/decisions?limit=1000"))["decisions"]
        asked = [one for one in asked if not one["request_id"].startswith("find")]
        assert len(asked) == len({one["request_id"] for one in asked}) == 2 * GREEDY + 6, "each was placed once"
        placed = [one["at"] for one in asked if one["request_id"].startswith("greedy")]
        for one in asked:
            if one["request_id"].startswith("light"):
                between = sum(one["at"] - one["waited"] < at < one["at"] for at in placed)
                assert between <= 2, f"{between} of the greedy one before {one['request_id']}"
        assert any(one["waited"] for one in asked if one["request_id"].startswith("light"))
        assert await service.metric("kvgate_queue_requests") == 0

        # The lead is killed while those of the other worker wait at it: they wait on, and each is answered. They are
        # long enough that some wait still when its successor leads.
        waits = [
            asyncio.create_task(line.ask("greedy", f"orphan-{number}", tokens=8))
            for number, line in enumerate(lines[1][:GREEDY])
        ]
        async with asyncio.timeout(30):
            while await service.metric("kvgate_queue_requests") < GREEDY / 2:
                assert not all(task.done() for task in waits)
        os.kill(service.pids()[0], signal.SIGKILL)
        assert await asyncio.gather(*waits) == [200] * GREEDY
        for each in (*lines[0], *lines[1]):
            each.writer.close()
