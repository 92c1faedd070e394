"""Covers: gateway/workers/crew.py, gateway/workers/worker.py.

With small programs in the workers' place, which speak as those do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

import pytest

from gateway.core.clock import ManualClock
from gateway.sharing.seat import Seat
from gateway.workers import words
from gateway.workers.crew import EXIT_CONFIG, EXIT_FAILED, LONGEST_PAUSE, Crew, in_words, pause
from gateway.workers.worker import Command, Worker, starved_seconds
from tests.support.wait import eventually

SERVES = """
import os, socket
parent = socket.socket(fileno=int(os.environ["KVGATE_PARENT"]))
parent.sendall(b"beat\\nready-abc\\n")
words = parent.makefile()
for word in words:
    if word == "go\\n":
        parent.sendall(b"serving\\n")
    if word == "stop\\n":
        break
"""
"""What a worker does, and nothing else."""

SILENT = "import signal; signal.pause()"
"""It says nothing, and runs until a signal ends it."""

HANGS_AT_FIRST = (
    SERVES.partition("\\nready")[0]
    + """\\n")
import signal
signal.pause()
"""
)
"""It says that it runs, and no more."""

OTHER_VERSION = SERVES.replace("ready-abc\\n", "") + f"\nraise SystemExit({words.OTHER_VERSION})"
"""It has not served yet when it is told to end, and ends as one of another version does."""

STUCK = SERVES + "\nfor word in words: pass"
"""It does not end at its parent's word."""

STARVED = "gateway.workers.worker.starved_seconds"


class Team:
    """A crew of these programs, by the number of the seat's start."""

    def __init__(self, folder: str, *programs: str, count: int = 1, clock: ManualClock | None = None) -> None:
        self.started: list[Worker] = []
        self.dead: list[Worker] = []
        self.told: list[str] = []
        self._programs = programs
        self._folder = folder
        self._clock = clock or ManualClock()
        self.crew = Crew(count, self._start, self.dead.append, self._clock)

    def _start(self, number: int) -> Worker:
        program = self._programs[min(len(self.started), len(self._programs) - 1)]
        command = Command([sys.executable, "-S", "-c", program], {"PATH": "", "NOTIFY_SOCKET": "/x"})
        worker = Worker(Seat(number, self.crew.count, self._folder), command, self._clock, self._told)
        self.started.append(worker)
        return worker

    def _told(self, worker: Worker, word: str) -> None:
        self.told.append(word)
        if word == words.READY:
            assert worker.digest == "abc"
            worker.is_asked = True
            worker.go()
        else:
            self.crew.serves()


@pytest.fixture
async def team(tmp_path, monkeypatch):
    monkeypatch.setattr(STARVED, lambda pid: 0.0)  # on a busy machine the small programs wait for a core, too
    teams: list[Team] = []

    def make(*programs: str, **how) -> Team:
        teams.append(Team(str(tmp_path), *programs, **how))
        teams[-1].crew.open()
        return teams[-1]

    yield make
    for one in teams:
        await one.crew.close()
        assert all(worker.ended.done() for worker in one.started)


async def within(what: Callable[[], object]) -> None:
    await eventually(what, within=30)


async def test_workers_serve_and_end_at_a_word(team) -> None:
    two = team(SERVES, count=2)
    await two.crew.all_serve.wait()
    assert [worker.number for worker in two.crew.alive] == [0, 1]
    await two.crew.stop(30)
    assert [worker.ended.result() for worker in two.started] == [0, 0]
    assert two.crew.alive == []
    assert not two.crew.failed.done()


async def test_a_dead_one_has_a_successor_in_its_seat(team, caplog) -> None:
    two = team(SERVES, count=2)
    await two.crew.all_serve.wait()
    first = two.crew.workers[0]
    first.kill()
    await within(lambda: two.crew.workers[0] is not first and two.crew.workers[0].is_serving)
    assert two.dead == [first]
    assert two.crew.restarts == [1, 0]
    assert "worker 0 ended: signal SIGKILL" in caplog.text
    assert not two.crew.failed.done()


async def test_a_hung_one_is_killed_and_one_that_got_no_core_is_not(team, monkeypatch, caplog) -> None:
    clock = ManualClock()
    one = team(SERVES, clock=clock)
    await one.crew.all_serve.wait()
    first = one.crew.workers[0]
    clock.now += words.HUNG + 0.1
    monkeypatch.setattr(STARVED, lambda pid: 1.0)
    first.look()  # for a second of these it was ready to run, and another had the core
    assert not first.ended.done()
    clock.now += 1.0
    first.look()
    await within(lambda: first.ended.done())
    assert first.ended.result() == -signal.SIGKILL
    assert "hangs: nothing of it for 3.1 s; killed" in caplog.text


async def test_one_that_has_time_is_away_while_it_stands_still(team) -> None:
    clock = ManualClock()
    one = team(SERVES, clock=clock)
    await one.crew.all_serve.wait()
    first = one.crew.workers[0]
    first.patience = words.LOADING
    clock.now += words.HUNG + 0.1
    first.look()
    first.look()
    assert one.told == [words.READY, words.SERVING, words.LEAVING]
    clock.now += words.HUNG
    first.go()  # it answers
    await within(lambda: one.told[3:] == [words.SERVING] * 2)
    first.look()
    assert len(one.told) == 5


async def test_three_failed_starts_within_a_minute_end_the_service(team, caplog) -> None:
    one = team("raise SystemExit(5)")
    assert await one.crew.failed == EXIT_FAILED
    assert len(one.started) == 3
    assert "worker 0 could not start 3 times within a minute: the service ends" in caplog.text
    assert "ended with exit status 5" in caplog.text


async def test_failed_starts_that_are_seldom_do_not(team) -> None:
    clock = ManualClock()
    one = team("raise SystemExit(5)", "raise SystemExit(5)", "raise SystemExit(5)", SERVES, clock=clock)
    await within(lambda: len(one.dead) == 1)
    clock.now += 61
    await within(lambda: len(one.dead) == 2)
    clock.now += 61
    await one.crew.all_serve.wait()


async def test_a_configuration_that_cannot_be_used_ends_it_at_once(team) -> None:
    one = team(f"raise SystemExit({EXIT_CONFIG})")
    assert await one.crew.failed == EXIT_CONFIG
    assert len(one.started) == 1


async def test_once_all_have_served_it_is_a_failed_start_like_others(team, caplog) -> None:
    one = team(SERVES, f"raise SystemExit({EXIT_CONFIG})")
    await one.crew.all_serve.wait()
    one.crew.workers[0].kill()
    assert await one.crew.failed == EXIT_FAILED
    assert len(one.started) == 4


async def test_after_an_upgrade_the_others_serve_on_and_the_log_says_once_what_to_do(team, monkeypatch, caplog) -> None:
    monkeypatch.setattr("gateway.workers.crew.MINUTE", 0.05)
    upgraded = f"raise SystemExit({words.OTHER_VERSION})"
    two = team(SERVES, SERVES, *[upgraded] * 5, SERVES, count=2)
    await two.crew.all_serve.wait()
    first, other = two.crew.workers[0], two.crew.workers[1]
    first.kill()
    await within(lambda: two.crew.workers[0] is two.started[-1] is not first and two.crew.workers[0].is_serving)
    assert len(two.started) == 8, "it is tried again, since the upgrade may be taken back"
    assert two.crew.workers[1] is other
    assert not two.crew.failed.done()
    assert caplog.text.count(f"`kill -USR2 {os.getpid()}`, or a restart, lets all run the new version") == 1


async def test_after_an_upgrade_a_service_without_workers_ends(team) -> None:
    one = team(SERVES, f"raise SystemExit({words.OTHER_VERSION})")
    await one.crew.all_serve.wait()
    one.crew.workers[0].kill()
    assert await one.crew.failed == EXIT_FAILED


async def test_what_does_not_end_is_killed(team, monkeypatch, caplog) -> None:
    monkeypatch.setattr("gateway.workers.crew.AFTER_GRACE", 0.1)
    caplog.set_level(logging.INFO)
    one = team(STUCK)
    await one.crew.all_serve.wait()
    await one.crew.stop(0)
    assert "workers that do not end are killed" in caplog.text
    await one.crew.close()
    assert one.started[0].ended.result() == -signal.SIGKILL


@pytest.mark.parametrize("program", [SILENT, HANGS_AT_FIRST], ids=["silent", "after-a-beat"])
async def test_one_that_hangs_before_it_serves_is_killed(team, caplog, program) -> None:
    clock = ManualClock()
    one = team(program, SERVES, clock=clock)
    await within(lambda: one.started)
    [first] = one.started
    if program is HANGS_AT_FIRST:
        await within(lambda: first._beat_at is not None)
    clock.now += words.LOADING - 1
    first.look()
    assert not first.ended.done()
    clock.now += 2
    first.look()
    await one.crew.all_serve.wait()
    assert first.ended.result() == -signal.SIGKILL
    assert "worker 0" in caplog.text
    assert "hangs" in caplog.text


async def test_one_of_another_version_is_not_waited_for_by_a_service_that_ends(team, caplog) -> None:
    one = team(STUCK, OTHER_VERSION, count=2)
    await within(lambda: len(one.started) == 2 and one.started[1]._beat_at is not None)
    await within(lambda: one.started[0].is_serving)
    stopping = asyncio.create_task(one.crew.stop(30))
    await within(one.started[1].ended.done)
    assert one.started[1].ended.result() == words.OTHER_VERSION
    await within(lambda: one.dead == [one.started[1]])
    one.started[0].kill()
    await stopping
    assert "USR2" not in caplog.text


async def test_one_that_does_not_listen_yet_ends_at_once(team) -> None:
    one = team(SILENT)
    await within(lambda: one.started)
    await one.crew.stop(30)
    assert one.started[0].ended.result() == -signal.SIGTERM


def test_for_how_long_a_process_got_no_core_is_read_of_the_kernel() -> None:
    assert starved_seconds(os.getpid()) > 0.0
    assert starved_seconds(0) == 0.0, "there is none"


def test_pauses_double_to_a_bound() -> None:
    assert [pause(deaths) for deaths in range(1, 6)] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert pause(50) == LONGEST_PAUSE


def test_a_status_in_words() -> None:
    assert in_words(3) == "exit status 3"
    assert in_words(-9) == "signal SIGKILL"
    assert in_words(-63) == "signal 63"
