"""Covers: gateway/tenants/limits_table.py, gateway/tenants/shared_state.py, gateway/tenants/state_file.py.

Workers as real processes on one memory: hammered together, and killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.tenants.gate import Gate
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings
from gateway.tenants.limits_table import LimitsTable
from gateway.tenants.settings import TenantSettings
from gateway.tenants.shared_state import LOOK, SharedState
from gateway.tenants.state_file import StateFile

WORKER = """
import json, sys
from gateway.errors import LimitReached
from tests.tenants.test_limits_over_processes import caller, gate_of

gate, held = gate_of(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]), []
print("ready", flush=True)
for line in sys.stdin:
    count, tokens, settle = json.loads(line)
    passed = 0
    for _ in range(count):
        try:
            grant = gate.admit(caller(), "m", 0)
            held.append(grant)
            grant.exact(tokens, 0.0)
            passed += 1
        except LimitReached:
            continue
    if settle:
        for grant in held:
            grant.settle(tokens, 0, 0)
        held.clear()
    print(passed, flush=True)
"""


def gate_of(fd: int, number: int, kept: list[str]) -> Gate:
    # For rates time stands still, however busy the machine is.
    clock = ManualClock(5.0, epoch=1e9)
    gate = Gate(dict, clock, NULL_OBSERVER, SharedState(LimitsTable.join(fd, number), clock))
    for path in kept:
        StateFile(path, gate).load()
    return gate


def caller(**other: Any) -> Caller:
    limits = LimitSettings(requests_per_minute=100, concurrent=90, tokens_in_flight=70_000)
    return Caller.of(TenantSettings("red", limits=limits, budget=BudgetSettings(10**9), **other))


class Worker:
    def __init__(self, fd: int, number: int, *more: str) -> None:
        arguments = [sys.executable, "-c", WORKER, str(fd), str(number), *more]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], cwd=Path(__file__).parents[2]
        )

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def ask(self, count: int, tokens: int = 0, *, settle: bool = False) -> None:
        """Let so many requests begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([count, tokens, settle]).encode() + b"\n")
        self.process.stdin.flush()

    def passed(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def table() -> Iterator[LimitsTable]:
    made = LimitsTable.create(5)
    yield made
    made.close()


@contextlib.contextmanager
def workers(table: LimitsTable, count: int, *more: str) -> Iterator[list[Worker]]:
    started = [Worker(table.fd, number, *more) for number in range(count)]
    try:
        for worker in started:
            worker.ready()
        yield started
    finally:
        for worker in started:
            worker.kill()
            assert worker.process.stdin is not None
            assert worker.process.stdout is not None
            worker.process.stdin.close()
            worker.process.stdout.close()


def test_of_a_thousand_at_once_as_many_pass_as_the_limit_allows_and_a_killed_worker_s_places_are_free(table):
    with workers(table, 4) as started:
        for worker in started:
            worker.ask(250, 1000)
        passed = [worker.passed() for worker in started]
        # Ninety run at once, and of these seventy have tokens.
        assert sum(passed) == 70
        gate = gate_of(table.fd, 4, [])
        [(_, meter)] = gate.meters(caller())
        place = meter.place
        assert (place.concurrent.value, place.tokens_in_flight.value) == (90, 70_000)
        assert gate.budget(caller()).in_flight == 70_000
        assert meter.requests.used(5.0) == 90
        killed = max(range(4), key=lambda number: passed[number])
        started[killed].kill()
        assert isinstance(gate.clock, ManualClock)
        gate.clock.now += LOOK
        with gate.state:
            assert place.tokens_in_flight.value == 1000 * (70 - passed[killed])
            assert (left := place.concurrent.value) < 90
        others = [worker for number, worker in enumerate(started) if number != killed]
        for worker in others:
            worker.ask(0, 1000, settle=True)
            worker.passed()
        assert (place.concurrent.value, place.tokens_in_flight.value) == (0, 0)
        assert gate.budget(caller()).in_flight == 0
        assert gate.budget(caller()).spent == 1000 * left, "nobody knows what the killed one's have used"


def test_exactly_as_many_requests_a_minute(table):
    with workers(table, 4) as started:
        passed = 0
        for _ in range(2):  # ninety run at once; where no worker is done first, the others' find no place
            for worker in started:
                worker.ask(250, settle=True)
            passed += sum(worker.passed() for worker in started)
        assert passed == 100


async def test_what_all_workers_have_charged_is_in_the_file(table, tmp_path):
    path = str(tmp_path / "used.json")
    with workers(table, 2, path) as started:
        for worker in started:
            worker.ask(10, 7, settle=True)
            assert worker.passed() == 10
        gate = gate_of(table.fd, 2, [path])
        state = StateFile(path, gate)
        await state.save()
        started[0].ask(1, 7, settle=True)
        started[0].passed()
        await state.close()
    again = LimitsTable.create(1)
    try:
        gate = gate_of(again.fd, 0, [path])
        assert gate.budget(caller()).spent == 21 * 7
        assert gate.account("tenant:red").used("total").requests == 21
    finally:
        again.close()
