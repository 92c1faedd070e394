from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simulator.kubernetes.server import ApiServer
from tests.support.kubernetes import Cluster, simulated


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_seconds=0.05) as server:
        yield server


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A namespace on the simulated server."""
    async with simulated(server, tmp_path) as cluster:
        yield cluster
