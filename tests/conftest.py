"""What every test starts from."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from gateway.commands.processes import Processes
from simulator.tokenizer import build_tokenizer
from tests.support.examples import SHARE, THOROUGH
from tests.support.tls import Authority

# A shell that runs the suite in the background has it ignore Ctrl-C, and every process that a test starts would
# inherit that: tests of interrupts then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's business, and no test's. Where a test does not say how many it wants, it
# wants Hypothesis's hundred.
settings.register_profile("kvgate", deadline=None, max_examples=100 // SHARE)
settings.register_profile(THOROUGH, deadline=None, max_examples=100)
settings.load_profile("kvgate")

# Before the collecting, which makes half a million objects that stay. By Python's default the collector takes a fifth
# of its time, and a tenth of the run's: it runs as seldom as in a gateway.
gc.set_threshold(10_000, 50, 100)

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Any]:
    """asyncio's, but for what is marked with ``asyncio(loop_factories=[...])``: transports differ in when they call."""
    marker = item.get_closest_marker("asyncio")
    return LOOPS if marker is not None and marker.kwargs.get("loop_factories") else {"asyncio": LOOPS["asyncio"]}


def pytest_collection_finish() -> None:
    """Spare the collector half a million objects, which stay to the end: a test that asks for it waits 0.2 s else."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small tokenizer of our own, which no test writes to."""
    return str(build_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A certificate authority of the test's own."""
    return Authority(tmp_path)


@pytest.fixture
def kept() -> Iterator[None]:
    """The garbage collector keeps what it finds (tests/support/garbage.py)."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """What is started here has ended when the test has, whatever becomes of it. Logs are in ``tmp_path``."""
    with Processes(tmp_path) as running:
        yield running
