"""Covers: gateway/restart/succession.py, gateway/restart/takeover.py, gateway/serve.py, gateway/workers/service.py.

Real processes, of which the new one serves too late. The old one goes on, and what the new one has accepted by then is
answered. Both have code of the test's before their own: for the old one the time is over when a file is there.
"""

from __future__ import annotations

import os
import sys

import httpx
import pytest

from gateway.cli import EXIT_CONFIG
from gateway.commands.processes import START_SECONDS, offline
from tests.restart.conftest import CHAT, write
from tests.support.engines import simulated
from tests.support.ports import free_in_a_row
from tests.support.processes import ended, told, url_of

OLD = """
import asyncio, os
from gateway.restart.channel import Channel
receive = Channel.receive
async def until_the_file_is_there(self, seconds=None):
    while seconds and not os.path.exists("FILE"):
        await asyncio.sleep(0.01)
    return await receive(self, seconds and 0)
Channel.receive = until_the_file_is_there
"""

WORD = """
from gateway.restart.takeover import TakeOver
serving = TakeOver.serving
async def late(self):
    await self._channel._readable(None)
    await serving(self)
TakeOver.serving = late
"""
"""It says that it serves when it has been told that it is late."""

WORKER = """
import asyncio, json, os
from gateway.workers.post import Post
may_serve = Post.may_serve
async def never(self):
    await may_serve(self)
    await asyncio.get_running_loop().create_future()
if json.loads(os.environ.get("KVGATE_SEAT", "{}")).get("number") == 1:
    Post.may_serve = never
"""
"""Its second worker never serves."""

MAIN = """
import sys
from gateway.cli import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "late"), [(1, WORD), (2, WORD), (2, WORKER)], ids=["one process", "all serve", "one worker hangs"]
)
async def test_what_one_that_is_late_has_accepted_is_answered(tmp_path, processes, workers, late):
    port, over = free_in_a_row(2), tmp_path / "over"

    def serve(name: str, before: str, count: int):
        config = write(tmp_path, server.url, port, lame_duck=0, workers=count, grace=4 * START_SECONDS)
        return processes.start(
            name, [sys.executable, "-c", before + MAIN, "serve", str(config)], env=offline(os.environ)
        )

    async with simulated(step_seconds=0.01) as server, httpx.AsyncClient(verify=False, timeout=60) as client:
        old = serve("old", OLD.replace("FILE", str(over)), 1)
        url = f"{await url_of(old)}/v1/chat/completions"
        new = serve("new", late, workers)
        await told(new, "(serves, one of|metrics on)")  # and the old one accepts no more
        long = CHAT | {"stream": True, "max_tokens": 10_000, "ignore_eos": True}
        async with client.stream("POST", url, json=long) as reply:
            events = reply.aiter_lines()
            await anext(events)
            over.touch()
            await told(old, "it has not served within .*(this one goes on)")
            await told(new, "(grace for running answers)")
            for _ in range(10):
                await anext(events)
        assert await ended(new) == EXIT_CONFIG
        assert await told(new, r"process (\d+) serves on this port again: it has not served") == str(old.pid)
        assert (await client.post(url, json=CHAT)).status_code == 200
