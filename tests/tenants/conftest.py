"""A clock that stands still, on the 26th of November 2026 at noon in UTC."""

from __future__ import annotations

import pytest

from gateway.core.clock import ManualClock

NOON = 1_795_694_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0, epoch=NOON - 100.0)
