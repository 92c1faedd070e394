"""On which event loops the tests of this room run, and two tokenizers that differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from simulator.tokenizer import build_tokenizer

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Any]:
    """asyncio's, but for what is marked with ``asyncio(loop_factories=[...])``: transports differ in when they call."""
    marker = item.get_closest_marker("asyncio")
    return LOOPS if marker is not None and marker.kwargs.get("loop_factories") else {"asyncio": LOOPS["asyncio"]}


@pytest.fixture(scope="session")
def folders(tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tokenizers that differ in the ids of any text."""
    return Path(tokenizer), build_tokenizer(tmp_path_factory.mktemp("other"), vocabulary=512)
