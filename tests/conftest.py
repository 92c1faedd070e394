"""What every test starts from."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from simulator.tokenizer import build_tokenizer

# A shell that runs the suite in the background has it ignore Ctrl-C, and every process that a test starts would
# inherit that: tests of interrupts then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's business, and no test's. Each run draws other examples: half of Hypothesis's
# hundred where a test does not say how many it needs, since most of such a test's time is Hypothesis's own. The whole
# hundred with ``--hypothesis-profile thorough``, as ``make test-slow`` does it.
settings.register_profile("kvgate", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None)
settings.load_profile("kvgate")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small tokenizer of our own, which no test writes to."""
    return str(build_tokenizer(tmp_path_factory.mktemp("tokenizer")))
