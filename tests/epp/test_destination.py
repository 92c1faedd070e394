"""Covers: gateway/epp/destination.py.

Engines that are configured by name: what is looked up, and who waits for it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.epp.destination import AGAIN, Addresses
from gateway.errors import NoEndpoint
from tests.support.engines import simulated
from tests.support.gateway import config_for, running
from tests.support.wait import eventually


class Hand:
    """A clock that is moved by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


async def test_no_request_waits_for_a_name_that_was_found_before(monkeypatch):
    async with simulated() as server, running(config_for(server.url.replace("127.0.0.1", "localhost"))) as gateway:
        [endpoint] = gateway.gateway.fleet.all_endpoints
        port, clock = server.url.rpartition(":")[2], Hand()
        addresses, asked = Addresses(clock), asyncio.Queue[asyncio.Future[str]]()

        async def resolve(host: str, port: int, **how: Any) -> list[Any]:
            answer = asyncio.get_running_loop().create_future()
            asked.put_nowait(answer)
            return [(0, 0, 0, "", (await answer, port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        waiting = [asyncio.create_task(addresses.of(endpoint)) for _ in range(3)]
        (await asked.get()).set_exception(OSError("there is none"))
        for task in waiting:
            with pytest.raises(NoEndpoint):
                await task
        waiting = [asyncio.create_task(addresses.of(endpoint)) for _ in range(3)]
        (await asked.get()).set_result("10.0.0.1")
        assert {await task for task in waiting} == {f"10.0.0.1:{port}"}
        assert asked.empty(), "one look-up is for all"

        clock.now = AGAIN + 1
        for _ in range(3):
            assert await addresses.of(endpoint) == f"10.0.0.1:{port}"
        answer = await asked.get()
        assert asked.empty()
        assert addresses.known(endpoint) == f"10.0.0.1:{port}"
        answer.set_result("10.0.0.2")
        await eventually(lambda: addresses.known(endpoint) == f"10.0.0.2:{port}")

        clock.now *= 3
        assert await addresses.of(endpoint) == f"10.0.0.2:{port}"
        (await asked.get()).set_exception(OSError("the server is away"))
        await eventually(lambda: not addresses._looking)
        assert await addresses.of(endpoint) == f"10.0.0.2:{port}"
        assert asked.empty(), "it is asked again later"
