from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.clock import ManualClock
from gateway.core.observer import Settled


@pytest.fixture
def clock() -> ManualClock:
    """In 2027 by the one, not far from its start by the other: whoever mixes them up is seen."""
    return ManualClock(1000.0, epoch=1_800_000_000.0)


ANSWERED = Settled(
    request_id="req-1",
    model="m",
    route="/v1/chat/completions",
    outcome="ok",
    status=200,
    stream=True,
    endpoint="a",
    attempts=1,
    prompt_tokens=120,
    exact=True,
    expected_hit=96,
    duration=2.1,
    queue_wait=0.0,
    overhead=0.0008,
    phase="streaming",
    match_source="events",
    ttft=0.1,
    output_tokens=101,
    reported_prompt_tokens=120,
    cached_tokens=96,
)


@pytest.fixture
def answered() -> Settled:
    return ANSWERED


@pytest.fixture
def settled() -> Any:
    """``settled(status=503, ...)``: an answered request with some fields changed."""
    return lambda **changes: replace(ANSWERED, **changes)


class Lines(io.BytesIO):
    """A stream whose lines can still be read after the log was closed."""

    @property
    def text(self) -> str:
        return self.getvalue().decode()


@pytest.fixture
def lines() -> Lines:
    return Lines()
