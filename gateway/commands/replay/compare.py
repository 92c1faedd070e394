"""Runs every policy with every seed on a cell, in worker processes that share nothing, and shows the progress."""

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
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.statistics import METRICS, Summary, summarise

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

    def done(self, job: int, summary: Summary) -> None:
        self._ended += 1
        self.moved(job, 1.0)
        self._bar.update(self._task, note=self._note())
        if not self._console.is_terminal:
            first, good = summary.values["ttft_mean"], summary.values["goodput"]
            self._console.print(
                f"{self._name}: {self._note()}: {summary.policy}, seed {summary.seed}: "
                f"{METRICS['ttft_mean'].title} {first:.2f} s, goodput {good:.1%}, took {summary.cpu_seconds:.1f} s",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def _note(self) -> str:
        return f"{self._ended} of {len(self._shares)} runs"


def run(jobs: Sequence[Job], ticker: Ticker, *, processes: int = 1) -> list[Summary]:
    """Run ``jobs``, up to ``processes`` at a time; returns their summaries in the same order. Raises what a run
    raised."""
    with ticker:
        beside = processes > 1 and len(jobs) > 1
        return _in_workers(jobs, ticker, min(processes, len(jobs))) if beside else list(_here(jobs, ticker))


def _in_workers(jobs: Sequence[Job], ticker: Ticker, processes: int) -> list[Summary]:
    context = multiprocessing.get_context("spawn")  # a fork would copy a lock of the progress bar's thread
    reports: Any = context.Queue()
    found: dict[int, Summary] = {}
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(reports,))
    try:
        waiting: dict[Future[Summary], int] = {
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


def _here(jobs: Sequence[Job], ticker: Ticker) -> Iterator[Summary]:
    for number, job in enumerate(jobs):
        summary = _one(job, partial(ticker.moved, number))
        ticker.done(number, summary)
        yield summary


def _one(job: Job, report: Callable[[float], None]) -> Summary:
    """Run one job in this process. ``report`` is called whenever the done share has grown by ``REPORT``."""
    last = 0.0

    def progressed(share: float) -> None:
        nonlocal last
        if share >= last + REPORT:
            last = share
            report(share)

    cell = job.cell
    result = replay(cell.workload(job.seed), job.policy, cell, seed=job.seed, progress=progressed)
    return summarise(result, cell.objectives)


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
    return _one(job, lambda share: _reports.put((number, share)))
