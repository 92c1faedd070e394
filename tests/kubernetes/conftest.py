"""With a real API server: ``make test-kubernetes``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from gateway.commands.processes import Processes, tail
from tests.kubernetes.real import TOKEN, RealServer, installed
from tests.support.kubernetes import Cluster, connected

HERE = Path(__file__).parent
SECONDS = 300
"""For one test: the server starts in 6 seconds, and on a busy machine in a minute."""

LOGS = pytest.StashKey[Path]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Not even CI must have it: Debian may drop the version, and then nobody can build it.
    absent = pytest.mark.skipif(not installed(), reason="no kube-apiserver: tests/kubernetes/install.sh builds one")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)
            item.add_marker(pytest.mark.timeout(SECONDS))
            item.add_marker(absent)
            # Cancelled in a handshake of TLS, httpcore leaves the socket to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (folder := item.config.stash.get(LOGS, None)) is not None:
        report.sections += [(f"end of {log}", tail(log)) for log in sorted(folder.glob("*.log"))]
    return report


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[RealServer]:
    folder = pytestconfig.stash[LOGS] = tmp_path_factory.mktemp("kubernetes")
    with Processes(folder) as processes:
        server = RealServer(folder, processes)
        server.start()
        yield server
        server.kill_server()


@pytest.fixture
async def cluster(real: RealServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A namespace on the real server."""

    async def restart() -> None:
        await asyncio.to_thread(real.kill_server)
        await asyncio.to_thread(real.start_server)

    async def forget() -> None:
        await asyncio.to_thread(real.forget)

    async with connected(real.url, tmp_path, restart, forget, token=TOKEN, authority=real.authority) as cluster:
        await cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": cluster.namespace}})
        yield cluster
