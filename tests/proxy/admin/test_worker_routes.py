from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from aiohttp import web

from gateway.errors import ConfigError
from gateway.proxy.admin.worker_routes import Agree, WorkerRoutes
from gateway.restart.listener import Listener


class Gateway:
    """What reloads. ``log``: what it did."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.problem = ""
        self.pause = asyncio.Event()
        self.pause.set()

    async def reload(self, agree: Agree) -> dict[str, list[str]]:
        await self.pause.wait()
        if self.problem:
            raise ConfigError(self.problem)
        self.log.append("prepared")
        try:
            await agree()
        except ConfigError:
            self.log.append("undone")
            raise
        self.log.append("applied")
        return {"changes": ["a"]}

    async def look(self) -> None:
        self.log.append("looked")


@contextlib.asynccontextmanager
async def served(folder, gateway: Gateway, **how) -> AsyncIterator[httpx.AsyncClient]:
    routes = WorkerRoutes(gateway.reload, gateway.look, **how)
    app = web.Application()
    app.router.add_routes(routes.routes())
    listener = Listener(web.AppRunner(app, access_log=None), backlog=8)
    socket = str(folder / "admin.0")
    await listener.open_unix(socket)
    transport = httpx.AsyncHTTPTransport(uds=socket)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://worker/worker", timeout=30) as client:
            yield client
    finally:
        await listener.close()
        await routes.close()


async def test_it_prepares_and_then_applies_or_discards(tmp_path) -> None:
    gateway = Gateway()
    async with served(tmp_path, gateway) as client:
        assert (await client.post("/prepare")).status_code == 200
        assert gateway.log == ["prepared"]
        applied = await client.post("/apply")
        assert (applied.status_code, applied.json()) == (200, {"changes": ["a"]})
        assert gateway.log == ["prepared", "applied"]
        await client.post("/prepare")
        assert (await client.post("/discard")).status_code == 200
        assert gateway.log[2:] == ["prepared", "undone"]
        for late in ("/apply", "/discard"):  # of what is decided already
            await client.post(late)
        assert (await client.post("/apply")).json()["error"]["message"] == "nothing is prepared"
        assert gateway.log[4:] == []
        await client.post("/look")
        assert gateway.log[4:] == ["looked"]


async def test_what_is_wrong_is_said_at_once(tmp_path) -> None:
    gateway = Gateway()
    gateway.problem = "line 3"
    async with served(tmp_path, gateway) as client:
        refused = await client.post("/prepare")
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "line 3")
        gateway.problem = ""
        assert (await client.post("/prepare")).status_code == 200
        assert (await client.post("/apply")).status_code == 200


async def test_one_that_nobody_decides_is_taken_back(tmp_path) -> None:
    gateway = Gateway()
    async with served(tmp_path, gateway, patience=0.01) as client:
        assert (await client.post("/prepare")).status_code == 200
        late = await client.post("/apply")
        while late.status_code == 200:  # on a quick machine it may have come in time
            await client.post("/prepare")
            await asyncio.sleep(0.05)
            late = await client.post("/apply")
        assert gateway.log[-1] == "undone"


async def test_the_next_one_takes_back_what_waits(tmp_path) -> None:
    gateway = Gateway()
    async with served(tmp_path, gateway) as client:
        await client.post("/prepare")
        assert (await client.post("/prepare")).status_code == 200
        assert gateway.log == ["prepared", "undone", "prepared"]
        assert (await client.post("/apply")).status_code == 200


async def test_an_end_changes_nothing(tmp_path) -> None:
    gateway = Gateway()
    async with served(tmp_path, gateway) as client:
        await client.post("/prepare")
    assert gateway.log == ["prepared"]
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(tmp_path / "admin.0"))) as client:
            await client.post("http://worker/worker/apply")
