"""Workers of one host, in one process, over real Unix sockets; and the server between replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.clock import SystemClock
from gateway.core.observer import Observer
from gateway.sharing.seat import Seat
from gateway.sharing.siblings import Change, Siblings
from tests.support.valkey import valkey


class Refused(Observer):
    """What was refused of siblings' messages."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def sibling_refused(self, reason: str) -> None:
        self.reasons.append(reason)


class Worker:
    """Siblings, and what they heard and saw. ``heard``: under the topic ``t``."""

    def __init__(self, seat: Seat) -> None:
        self.refused = Refused()
        self.siblings = Siblings(seat, SystemClock(), self.refused)
        self.heard: list[tuple[int, bytes]] = []
        self.changes: list[Change] = []
        self.siblings.hear("t", lambda number, message: self.heard.append((number, message)))
        self.siblings.watch(self.changes.append)


@pytest.fixture
async def server(tmp_path: Path):
    """Between replicas. What uses it is marked ``needs_valkey``."""
    async with valkey(tmp_path) as started:
        yield started


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """One whose path is too long for a socket's."""
    made = tmp_path / ("w" * 100)
    made.mkdir(mode=0o700)
    return str(made)


@pytest.fixture
async def make(directory):
    """``make(number, count)``: one that has not started; all are closed at the end."""
    made: list[Worker] = []

    def one(number: int, count: int = 3) -> Worker:
        made.append(Worker(Seat(number, count, directory)))
        return made[-1]

    yield one
    for worker in made:
        await worker.siblings.close()


@pytest.fixture
def workers(make):
    """``await workers(number, count)`` starts one."""

    async def start(number: int, count: int = 3) -> Worker:
        worker = make(number, count)
        await worker.siblings.start()
        return worker

    return start
