"""Runs such as every policy with every seed on a cell, in worker processes that share nothing, and shows the
progress."""

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
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.statistics import Summary, summarise

LOOK = 0.2
"""Seconds between two updates of the progress bar, short enough for it to seem alive."""
REPORT = 0.01
"""Share of a run between two reports of a worker: 100 small messages in a run."""


class Result(Protocol):
    """The result of a run."""

    @property
    def line(self) -> str:
        """The run in a few words, for a terminal that shows no progress bar."""
        ...


ResultT = TypeVar("ResultT", bound=Result)
ResultT_co = TypeVar("ResultT_co", bound=Result, covariant=True)


class Work(Protocol[ResultT_co]):
    """One run: it can be pickled, and its result too."""

    def do(self, progress: Callable[[float], None]) -> ResultT_co:
        """Run it in this process. ``progress``: called with the share that is done, 0..1."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a policy on a cell."""

    cell: Cell
    policy: Policy
    seed: int

    def do(self, progress: Callable[[float], None]) -> Summary:
        cell = self.cell
        result = replay(cell.workload(self.seed), self.policy, cell, seed=self.seed, progress=progress)
        return summarise(result, cell.objectives)


class Ticker:
    """The progress of ``jobs`` runs: a bar on a terminal, else a line for each run that ended. A context, entered while
    they run."""

    def __init__(self, console: Console, name: str, jobs: int) -> None:
        self._console = console
        self._name = name
        self._shares = [0.0] * jobs
        self._ended = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=float(jobs), note=self._note())

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def moved(self, job: int, share: float) -> None:
        """Job number ``job`` has done ``share`` (0..1) of its work."""
        self._shares[job] = max(self._shares[job], min(share, 1.0))
        self._bar.update(self._task, completed=sum(self._shares))

    def done(self, job: int, result: Result) -> None:
        self._ended += 1
        self.moved(job, 1.0)
        self._bar.update(self._task, note=self._note())
        if not self._console.is_terminal:
            self._console.print(
                f"{self._name}: {self._note()}: {result.line}", markup=False, highlight=False, soft_wrap=True
            )

    def _note(self) -> str:
        return f"{self._ended} of {len(self._shares)} runs"


def run(jobs: Sequence[Work[ResultT]], ticker: Ticker, *, processes: int = 1) -> list[ResultT]:
    """Run ``jobs``, up to ``processes`` at a time; returns their results in the same order. Raises what a run
    raised."""
    with ticker:
        beside = processes > 1 and len(jobs) > 1
        return _in_workers(jobs, ticker, min(processes, len(jobs))) if beside else list(_here(jobs, ticker))


def _in_workers(jobs: Sequence[Work[ResultT]], ticker: Ticker, processes: int) -> list[ResultT]:
    context = multiprocessing.get_context("spawn")  # a fork would copy a lock of the progress bar's thread
    reports: Any = context.Queue()
    found: dict[int, ResultT] = {}
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(reports,))
    try:
        waiting: dict[Future[ResultT], int] = {
            pool.submit(_work, number, job): number for number, job in enumerate(jobs)
        }
        while waiting:
            ended, _ = wait(waiting, LOOK, FIRST_COMPLETED)
            for number, share in _drained(reports):
                ticker.moved(number, share)
            for future in ended:
                number = waiting.pop(future)
                found[number] = future.result()
                ticker.done(number, found[number])
    except BaseException:
        # The pool's own thread waits for its workers. A second waiter could miss that they have ended.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        reports.close()
    return [found[number] for number in range(len(jobs))]


def _here(jobs: Sequence[Work[ResultT]], ticker: Ticker) -> Iterator[ResultT]:
    for number, job in enumerate(jobs):
        result = _one(job, partial(ticker.moved, number))
        ticker.done(number, result)
        yield result


def _one(job: Work[ResultT], report: Callable[[float], None]) -> ResultT:
    """Run one job in this process. ``report`` is called whenever the done share has grown by ``REPORT``."""
    last = 0.0

    def progressed(share: float) -> None:
        nonlocal last
        if share >= last + REPORT:
            last = share
            report(share)

    return job.do(progressed)


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


def _work(number: int, job: Work[ResultT]) -> ResultT:
    return _one(job, lambda share: _reports.put((number, share)))
