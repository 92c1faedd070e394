from __future__ import annotations

import pytest

from gateway.commands.demo.scene import Scene


@pytest.fixture
def small() -> Scene:
    """A scene of a few seconds: 36 requests, whose prompts do not all fit into one cache of the two."""
    return Scene(
        engines=2,
        prefill_seconds=8e-5,
        step_seconds=5e-3,
        cache_blocks=320,
        groups=6,
        system_words=600,
        users=3,
        turns=2,
        at_once=3,
        arrival_seconds=0.05,
        answer_tokens=4,
    )
