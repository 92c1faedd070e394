from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from simulator.server import EngineServer
from tests.support.engines import engines
from tests.support.ext_proc import Picking, picker_config, picking
from tests.support.wait import eventually


@pytest.fixture
async def servers() -> AsyncIterator[list[EngineServer]]:
    async with engines(2) as started:
        yield started


@pytest.fixture
async def it(servers: list[EngineServer]) -> AsyncIterator[Picking]:
    async with picking(picker_config(*(server.url for server in servers))) as one:
        yield one
        await eventually(one.running.idle, "nothing stays booked")
