"""Runs every policy with every seed on a cell, in worker processes that share nothing."""

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

from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.statistics import Summary, summarise

LOOK = 0.2
"""Seconds between two updates of the progress bar, short enough for it to seem alive."""
REPORT = 0.01
"""Share of a run between two reports of a worker: 100 small messages in a run."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    cell: Cell
    policy: Policy
    seed: int


class Watcher(Protocol):
    """Receives the progress of the jobs, on the caller's thread."""

    def moved(self, job: int, share: float) -> None:
        """Job number ``job`` has done ``share`` (0..1) of its work."""

    def done(self, job: int, summary: Summary) -> None: ...


class Unwatched:
    def moved(self, job: int, share: float) -> None: ...

    def done(self, job: int, summary: Summary) -> None: ...


def run(jobs: Sequence[Job], *, processes: int = 1, watcher: Watcher | None = None) -> list[Summary]:
    """Run ``jobs``, up to ``processes`` at a time; returns their summaries in the same order. Raises what a run
    raised."""
    watcher = watcher or Unwatched()
    if processes <= 1 or len(jobs) <= 1:
        return list(_here(jobs, watcher))
    context = multiprocessing.get_context("spawn")  # a fork would copy a lock of the progress bar's thread
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
        # The pool's own thread waits for its workers. A second waiter could miss that they have ended.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        reports.close()
    return [found[number] for number in range(len(jobs))]


def one(job: Job, progress: Callable[[float], None] | None = None) -> Summary:
    """Run one job in this process."""
    cell = job.cell
    result = replay(cell.workload(job.seed), job.policy, cell, seed=job.seed, progress=progress)
    return summarise(result, cell.objectives)


def _here(jobs: Sequence[Job], watcher: Watcher) -> Iterator[Summary]:
    for number, job in enumerate(jobs):
        summary = one(job, _Seldom(partial(watcher.moved, number)))
        watcher.done(number, summary)
        yield summary


class _Seldom:
    """Passes progress on only after it has grown by ``REPORT``."""

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
    # Ctrl-C reaches all processes of the terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent has ended: a killed parent cannot end its workers, and they would wait for their
    next job forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(number: int, job: Job) -> Summary:
    return one(job, _Seldom(lambda share: _reports.put((number, share))))
