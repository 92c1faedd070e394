"""Under a real Envoy: ``make test-envoy``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.commands.processes import tail
from tests.envoy.lab import Lab, lab
from tests.envoy.versions import installed

HERE = Path(__file__).parent
SECONDS = 120
"""For one test, with the start of its processes on a busy machine."""

FOLDERS = pytest.StashKey[list[Path]]()
"""Where the logs of this session's processes are."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A user's machine may do without; CI has to have it.
    absent = pytest.mark.skipif(
        not installed() and not os.environ.get("CI"), reason="Envoy is not installed: run tests/envoy/install.sh"
    )
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.envoy)
            item.add_marker(pytest.mark.timeout(SECONDS))
            item.add_marker(absent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for folder in item.config.stash.get(FOLDERS, []):
            report.sections += [(f"end of {log}", tail(log)) for log in sorted(folder.glob("*.log"))]
    return report


@pytest.fixture
def folder(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Path]:
    """Of configurations and logs; the logs go into a failed test's report."""
    folders = pytestconfig.stash.setdefault(FOLDERS, [])
    folders.append(tmp_path)
    yield tmp_path
    folders.remove(tmp_path)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> AsyncIterator[Lab]:
    """Two engines, one picker, and Envoys before it: tests leave them as they found them."""
    made = tmp_path_factory.mktemp("service")
    pytestconfig.stash.setdefault(FOLDERS, []).append(made)
    async with lab(made) as running:
        yield running
