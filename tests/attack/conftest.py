"""The attack from outside: whole gateways as processes, before engines that fail. ``make test-attack``."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 120
"""For one case, with the start of its processes on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.attack)
            item.add_marker(pytest.mark.timeout(SECONDS))
