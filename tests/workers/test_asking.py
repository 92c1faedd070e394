"""A parent's questions over a worker's socket: what is sent there, and that nothing is left of a worker that has ended.
The worker is any process; its socket is the test's."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from gateway.core.clock import ManualClock
from gateway.sharing.seat import Seat
from gateway.workers.asking import Asking
from gateway.workers.post import admin_socket
from gateway.workers.worker import Command, Worker
from tests.support.wait import eventually


@contextlib.asynccontextmanager
async def worker(folder: Path) -> AsyncIterator[Worker]:
    """One whose socket answers with the body and the type that it got."""

    async def tell(http: web.Request) -> web.Response:
        return web.json_response([http.headers.get("Content-Type"), await http.text()])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    command = Command([sys.executable, "-S", "-c", "import signal; signal.pause()"], {"PATH": ""})
    started = Worker(Seat(0, 1, str(folder)), command, ManualClock(), lambda worker, word: None)
    try:
        await web.UnixSite(runner, admin_socket(str(folder), 0)).start()
        yield started
    finally:
        started.close()
        await runner.cleanup()


async def body() -> AsyncIterator[bytes]:
    yield b"{}"


@pytest.mark.parametrize(("headers", "type_"), [({}, b"null"), ({"content-type": "a/b"}, b'"a/b"')])
async def test_a_body_goes_to_the_worker_as_it_came(folder, headers, type_) -> None:
    asking = Asking()
    async with worker(folder) as one:
        answer = await asking.ask(one, "POST", "/debug/explain", headers=headers, body=body())
        await asking.close()
        assert answer.body == b"[" + type_ + b', "{}"]'


async def test_connections_to_a_worker_that_has_ended_are_closed(folder, caplog) -> None:
    asking = Asking()
    async with worker(folder) as one:
        assert (await asking.ask(one, "GET", "/metrics")).status == 200
        one.kill()
        await eventually(lambda: not asking._clients)
    await asking.close()
    gc.collect()
    assert "Unclosed" not in caplog.text
