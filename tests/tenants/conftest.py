"""A clock that stands still, on the 26th of November 2026 at noon in UTC; and hosts on one server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.core.clock import ManualClock
from gateway.sharing.settings import SharingSettings
from gateway.tenants.shared_rows import Mode
from tests.support.valkey import ValkeyServer, valkey
from tests.support.wait import eventually
from tests.tenants.hosts import PATIENT, Host

NOON = 1_795_694_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0, epoch=NOON - 100.0)


@pytest.fixture
async def server(tmp_path) -> AsyncIterator[ValkeyServer]:
    async with valkey(tmp_path) as one:
        yield one


@pytest.fixture
async def hosts(server, monkeypatch) -> AsyncIterator[Callable[..., Any]]:
    async with contextlib.AsyncExitStack() as cleanup:

        async def start(count: int = 2, **more: Any) -> list[Host]:
            monkeypatch.setattr("gateway.tenants.waiting.PATIENCE", PATIENT)
            monkeypatch.setattr("gateway.tenants.divider.BEAT", 0.2)
            monkeypatch.setattr("gateway.tenants.budget_parts.SYNC", 0.05)
            settings = SharingSettings(server.settings.url, **more)
            started = [Host(settings) for _ in range(count)]
            for one in started:
                cleanup.push_async_callback(one.close)
            await eventually(
                lambda: all(one.mode == Mode.DIVIDED and one.state.table.replicas == count for one in started),
                "all hosts know each other",
            )
            return started

        yield start
