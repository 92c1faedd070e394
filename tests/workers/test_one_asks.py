"""Covers: gateway/fleet/reports.py, gateway/sharing/notes.py.

A service of two workers, as processes: engines see one gateway, whichever worker dies, and a session stays where it is,
whichever worker serves it.
"""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from gateway.commands.processes import START_SECONDS
from tests.support.processes import lines
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually, until
from tests.support.wire import Connection, answer
from tests.workers.conftest import CHAT, PATH, document, started

IN_A_ROW = 10
"""Scrapes of one connection, one after the other, which two that scrape in turn do not come to."""

PROFILE = {
    "plugins": [
        {"name": "healthy", "type": "healthy"},
        {"name": "session", "type": "session-affinity"},
        {"name": "best", "type": "max-score"},
    ],
    "profiles": [
        {"name": "default", "filters": ["healthy"], "scorers": [{"plugin": "session"}], "picker": "best"},
    ],
}


class Watched(ScriptedEngine):
    """``scraped_by``: the connections of its scrapes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scraped_by: list[Connection] = []
        self.faults["/metrics"] = self.told

    async def told(self, connection: Connection, head: bytes) -> None:
        self.scraped_by.append(connection)
        await connection.say(answer(self.metrics().encode()))

    def scraped_by_one(self, other_than: Connection | None = None) -> bool:
        last = self.scraped_by[-IN_A_ROW:]
        return len(last) == IN_A_ROW and len(set(map(id, last))) == 1 and last[-1] is not other_than


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        yield client


@pytest.mark.slow
async def test_engines_are_asked_by_one_worker_and_sessions_stay(folder, processes, client):
    async with Watched() as first, Watched() as second:
        content = document(first.url, second.url) | {"fleet": {"scrape": {"interval": 0.05}}} | PROFILE
        service = await started(processes, folder, content, client)
        await until(service.is_up, within=START_SECONDS)
        await eventually(lambda: first.scraped_by_one() and second.scraped_by_one(), within=START_SECONDS)
        lead, inspected = first.scraped_by[-1], first.count("/v1/models")

        # Each connection is another worker's. A session goes to one engine, whoever serves it.
        for session in range(8):
            before = first.posts, second.posts
            for _ in range(6):
                headers = {"x-session-id": f"s{session}"}
                async with httpx.AsyncClient(timeout=60, verify=False) as other:
                    reply = await other.post(f"{service.url}{PATH}", json=CHAT, headers=headers)
                assert reply.status_code == 200, reply.text
            assert sorted((first.posts - before[0], second.posts - before[1])) == [0, 6]

        # The lead dies: the next one asks, and so does its successor, which leads again.
        pids = service.pids()
        os.kill(pids[0], signal.SIGKILL)
        await eventually(lambda: first.scraped_by_one(other_than=lead), within=START_SECONDS)
        await service.replaced(0, pids)
        await eventually(first.scraped_by_one, within=START_SECONDS)
        assert await service.metric("kvgate_engine_up") == 2
        assert first.count("/v1/models") <= inspected + 2
        assert not any(" is down" in line for line in lines(service.process))
