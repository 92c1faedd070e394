"""The progress of the runs: a bar on a terminal, else a line for each run that ended."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gateway.commands.replay.compare import Job
from gateway.commands.replay.statistics import METRICS, Summary


class Ticker:
    """A ``Watcher`` of these jobs. It is a context, entered while they run."""

    def __init__(self, console: Console, name: str, jobs: Sequence[Job]) -> None:
        self._console = console
        self._name = name
        self._shares = [0.0] * len(jobs)
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
        self._task = self._bar.add_task(name, total=float(len(jobs)), note=self._note())

    def __enter__(self) -> Ticker:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def moved(self, job: int, share: float) -> None:
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
