"""Runs policies x seeds over a cell, each run in a process of its own turn: they share nothing but the machine."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, Protocol

from gateway.replay.cell import Cell
from gateway.replay.policies import Wiring
from gateway.replay.run import replay
from gateway.replay.statistics import Summary, summarise

LOOK = 0.2
"""Seconds between two looks at how far the workers are: what a bar needs to seem alive."""
REPORT = 0.01
"""Share of a run between two reports of a worker: 100 small messages a run."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    cell: Cell
    wiring: Wiring
    seed: int


class Watcher(Protocol):
    """Is told how it goes: on the caller's thread."""

    def moved(self, job: int, share: float) -> None:
        """Job number ``job`` is ``share`` (0..1) done."""

    def done(self, job: int, summary: Summary) -> None: ...


class Unwatched:
    def moved(self, job: int, share: float) -> None: ...

    def done(self, job: int, summary: Summary) -> None: ...


def run(jobs: Sequence[Job], *, processes: int = 1, watcher: Watcher | None = None) -> list[Summary]:
    """The summaries of ``jobs``, in their order; up to ``processes`` at a time. Raises what a run raised."""
    watcher = watcher or Unwatched()
    if processes <= 1 or len(jobs) <= 1:
        return list(_here(jobs, watcher))
    context = multiprocessing.get_context("spawn")  # a fork would copy a terminal's progress thread in mid-step
    reports: Any = context.Queue()
    found: dict[int, Summary] = {}
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(processes, len(jobs)), context, initializer=_begin, initargs=(reports,))
    try:
        waiting: dict[Future[Summary], int] = {
            pool.submit(_work, number, job): number for number, job in enumerate(jobs)
        }
        while waiting:
            ended, _ = wait(waiting, LOOK, FIRST_COMPLETED)
            for number, share in _drained(reports):
                watcher.moved(number, share)
            for future in ended:
                number = waiting.pop(future)
                found[number] = future.result()
                watcher.done(number, found[number])
    except BaseException:
        # The pool's own thread sees them die, and waits for them: a second who waits could miss that they are gone.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        reports.close()
    return [found[number] for number in range(len(jobs))]


def one(job: Job, progress: Callable[[float], None] | None = None) -> Summary:
    """Run one job, here and now."""
    cell = job.cell
    result = replay(cell.workload(job.seed), job.wiring, cell, seed=job.seed, progress=progress)
    return summarise(result, cell.objectives)


def _here(jobs: Sequence[Job], watcher: Watcher) -> Iterator[Summary]:
    for number, job in enumerate(jobs):
        summary = one(job, _Seldom(partial(watcher.moved, number)))
        watcher.done(number, summary)
        yield summary


class _Seldom:
    """Passes a progress on only where it has moved by ``REPORT``."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._last = 0.0

    def __call__(self, share: float) -> None:
        if share >= self._last + REPORT:
            self._last = share
            self._report(share)


def _drained(reports: Any) -> Iterator[tuple[int, float]]:
    while True:
        try:
            yield reports.get_nowait()
        except queue.Empty:
            return


# In a worker process.

_reports: Any = None


def _begin(reports: Any) -> None:
    global _reports
    _reports = reports
    # Ctrl-C goes to the whole terminal: the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed can end nobody, and a pool's workers would wait for its next job for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(number: int, job: Job) -> Summary:
    return one(job, _Seldom(lambda share: _reports.put((number, share))))
