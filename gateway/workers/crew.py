"""Keeps a worker in each seat: starts it, looks whether its loop runs, and starts a successor when it has ended.

Rules: a successor of one that has served comes at once, then after pauses that double, since what has killed it may
come again; one that has ended in order, since somebody sent it SIGTERM, counts as none. Three starts of one seat that
failed within a minute end the service: its manager, or a person, has to look. A configuration that cannot be used (exit
status 2) ends it at once, unless it has served already. Where another version of kvgate was installed meanwhile, a dead
worker has no successor: it could not read what the others share. These serve on, and the log says how to let all run
the new version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.core.tasks import TaskSet
from gateway.framework import Clock
from gateway.workers import words
from gateway.workers.worker import Worker

log = logging.getLogger("kvgate.workers")

EXIT_FAILED, EXIT_CONFIG = 1, 2

STARTS, MINUTE = 3, 60.0
"""So many failed starts of one seat within so many seconds end the service."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a successor's start, after the second and after many deaths within a minute."""

LOOK = 0.5
"""Seconds between two looks whether the workers' loops run: a quarter of what a silent one has."""

AFTER_GRACE = 15.0
"""Seconds beyond the grace of running answers that a worker has to close its connections and end."""


class Death(Protocol):
    """What is to be done when a worker has ended: its shared memory is another's now."""

    def __call__(self, worker: Worker, /) -> None: ...


class Crew:
    """``start``: starts a worker in the seat of this number; raises OSError. ``died``: see ``Death``."""

    def __init__(self, count: int, start: Callable[[int], Worker], died: Death, clock: Clock) -> None:
        self.count = count
        self.workers: dict[int, Worker] = {}
        """The last worker of each seat, by number; it may have ended."""
        self.restarts = [0] * count
        """Successors that were started, by seat."""
        self.failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Set to the exit status with which the service has to end."""
        self.all_serve = asyncio.Event()
        """Set once each seat's worker accepts connections, for good."""
        self._start = start
        self._died = died
        self._clock = clock
        self._stopping = asyncio.Event()
        self._tasks = TaskSet()
        self._seats: list[asyncio.Task[None]] = []
        self._other_version = False

    def open(self) -> None:
        """Start all of them."""
        self._seats = [self._tasks.start(self._keep(number), name=f"seat {number}") for number in range(self.count)]
        self._tasks.start(self._look(), name="look at the workers")

    @property
    def alive(self) -> list[Worker]:
        """Those that can be asked, and are told of each change, by number; the first leads. Some may not serve yet."""
        found = (self.workers.get(number) for number in range(self.count))
        return [worker for worker in found if worker is not None and worker.is_asked and not worker.ended.done()]

    @property
    def serving(self) -> list[Worker]:
        """Those that accept connections, by number."""
        return [worker for worker in self.alive if worker.is_serving]

    def serves(self) -> None:
        """A worker accepts connections now."""
        if len(self.serving) == self.count:
            self.all_serve.set()

    def be_patient(self) -> None:
        """Let all be not ready for new clients, and go on until ``stop``. Who dies meanwhile has no successor."""
        self._stop((words.PATIENT,))

    async def stop(self, seconds: float, how: Iterable[str] = ()) -> None:
        """Let all drain and end; wait for it. ``seconds``: that they have for it. ``how``: as for a worker."""
        running = self._stop(how)
        try:
            async with asyncio.timeout(seconds + AFTER_GRACE):
                for worker in running:
                    await asyncio.shield(worker.ended)
        except TimeoutError:
            log.error("workers that do not end are killed")

    def hurry(self) -> None:
        """Cut off running answers."""
        for worker in self.workers.values():
            if not worker.ended.done():
                worker.hurry()

    async def close(self) -> None:
        """Kill those that still run."""
        self._stopping.set()
        await self._tasks.close()
        for worker in self.workers.values():
            worker.close()

    def _stop(self, how: Iterable[str]) -> list[Worker]:
        """Those that are told so."""
        self._stopping.set()
        running = [worker for worker in self.workers.values() if not worker.ended.done()]
        for worker in running:
            worker.stop(how)
        return running

    async def _keep(self, number: int) -> None:
        failures: list[float] = []
        deaths: list[float] = []
        while not self._stopping.is_set():
            try:
                worker = self.workers[number] = self._start(number)
            except OSError as error:  # no memory or no process for it
                log.error("worker %d cannot be started: %s", number, error)
                status, served = EXIT_FAILED, False
            else:
                status = await asyncio.shield(worker.ended)
                served = worker.is_serving
                worker.is_serving = False
                self._died(worker)
            if self._stopping.is_set():
                if status and served:
                    log.error("worker %d ended: %s", number, in_words(status))
                return
            if status == words.OTHER_VERSION and not served and self._wait_for_version(number):
                await asyncio.sleep(MINUTE)  # the other version may be taken back
                continue
            now = self._clock.monotonic()
            deaths = [at for at in deaths if at > now - MINUTE]
            if status:
                deaths.append(now)
            log.error("worker %d ended%s: %s", number, "" if served else " before it served", in_words(status))
            failures = [] if served else [*(at for at in failures if at > now - MINUTE), now]
            if status == EXIT_CONFIG and not served and not self.all_serve.is_set():
                self._fail(EXIT_CONFIG)
                return
            if len(failures) >= STARTS:
                log.error(
                    "worker %d could not start %d times within a minute: the service ends; the last one ended with %s",
                    *(number, STARTS, in_words(status)),
                )
                self._fail(EXIT_FAILED)
                return
            await asyncio.sleep(pause(len(deaths)) if status else 0.0)
            self.restarts[number] += 1

    def _wait_for_version(self, number: int) -> bool:
        """This seat's worker would be of another version: whether others serve on. Logged once."""
        if all(worker.ended.done() for worker in self.workers.values()):
            return False
        if not self._other_version:
            self._other_version = True
            log.error(
                "worker %d has no successor, since another version of kvgate is installed now: the other workers serve "
                "its clients. `kill -USR2 %d`, or a restart, lets all run the new version",
                *(number, os.getpid()),
            )
        return True

    def _fail(self, status: int) -> None:
        if not self.failed.done():
            self.failed.set_result(status)

    async def _look(self) -> None:
        while True:
            began = self._clock.monotonic()
            await asyncio.sleep(LOOK)
            if self._clock.monotonic() - began > 2 * LOOK:
                continue  # we did not run ourselves: what workers said meanwhile comes first
            for worker in self.workers.values():
                worker.look()


def pause(deaths: int) -> float:
    """Seconds before the next start, after so many deaths within a minute."""
    return 0.0 if deaths < 2 else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (deaths - 2))


def in_words(status: int) -> str:
    """An exit status; a negative one is a signal's number."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
