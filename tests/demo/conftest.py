from __future__ import annotations

from pathlib import Path

import pytest

from gateway.demo.scene import Scene
from simulator.tokenizer import build_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def small() -> Scene:
    """A scene of a second or two: 24 requests, of which the four prompts do not fit into one cache."""
    return Scene(
        engines=2,
        prefill_seconds=2e-5,
        step_seconds=2e-3,
        cache_blocks=60,
        groups=4,
        system_words=120,
        users=3,
        turns=2,
        at_once=4,
        answer_tokens=4,
    )
