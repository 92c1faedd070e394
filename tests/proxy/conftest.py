"""On which event loops the tests of this room run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Any]:
    """asyncio's, but for what is marked with ``asyncio(loop_factories=[...])``: transports differ in when they call."""
    marker = item.get_closest_marker("asyncio")
    return LOOPS if marker is not None and marker.kwargs.get("loop_factories") else {"asyncio": LOOPS["asyncio"]}
