"""What every test starts from."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import settings

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
