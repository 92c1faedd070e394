"""A clock that stands still, and an observer that keeps the queue's lengths."""

from __future__ import annotations

import pytest

from gateway.core.clock import ManualClock
from gateway.core.observer import Observer


class Queues(Observer):
    def __init__(self) -> None:
        self.lengths: list[int] = []

    def queued(self, model: str, length: int) -> None:
        assert model == "m"
        self.lengths.append(length)


@pytest.fixture(scope="session")
def manual_clock() -> type[ManualClock]:
    return ManualClock


@pytest.fixture(scope="session")
def queues() -> type[Queues]:
    return Queues
