"""``kvgate plan``: how many engines a workload needs, to be answered within its objectives.

First the floor: what cannot be had at any size is said, and why, before anything is replayed. Then sizes are replayed,
with the gateway's own placement, by doubling and bisection; each by several seeds, and by more where these do not tell.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gateway.errors import ConfigError
from gateway.replay.cell import Cell
from gateway.replay.command import tell
from gateway.replay.compare import Job, run
from gateway.replay.demand import demand
from gateway.replay.floor import Floor, floors
from gateway.replay.kinds import MOST, Kind, Kinds, named
from gateway.replay.plan_plot import draw
from gateway.replay.plan_report import answer, fault, table
from gateway.replay.policies import Wiring
from gateway.replay.report import check_writable
from gateway.replay.show import Ticker
from gateway.replay.sizes import Judge, Sized, Trial, smallest
from gateway.replay.statistics import Summary
from simulator.virtual.machine import Machine

WIDTH = 80
"""Characters of the table, however wide a terminal is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is planned. ``cell``: all but its fleet and its load. ``rate``: requests a second in all; None: the trace's
    own, or what a closed loop makes. ``share``: of the requests, and of those of each class with objectives, that must
    be answered within these."""

    cell: Cell
    machine: Machine
    wiring: Wiring
    rate: float | None = None
    share: float = 0.99
    seeds: int = 3
    most: int = 256
    processes: int = 1

    def __post_init__(self) -> None:
        if not str(self.cell.objectives):
            raise ConfigError("say what is to be met: --slo ttft=2s,tpot=50ms")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError("--rate must be above 0 requests/s")
        if not 0 < self.share < 1:
            raise ConfigError("--share must be above 0 and below 100 %: nobody can promise all")
        if self.seeds < 2:
            raise ConfigError("seeds must be at least 2: one says nothing of the noise")
        if not 1 <= self.most <= MOST:
            raise ConfigError(f"--most must be in 1..{MOST} engines")

    @property
    def name(self) -> str:
        """Of the workload: such as ``trace, 20 requests/s, placed by default``."""
        load = "" if self.rate is None else f", {self.rate:g} requests/s"
        return f"{self.cell.source.name}{load}, placed by {self.wiring.name}"

    def sized(self, fleet: Kinds) -> Cell:
        """The cell with that many engines."""
        cell = dataclasses.replace(self.cell, fleet=fleet)
        return cell if self.rate is None else dataclasses.replace(cell, speed=self.rate / cell.endpoints)

    def floors(self) -> list[Floor]:
        """Raises ConfigError where the objectives are of no request, or a request fits no engine."""
        cell = self.sized((Kind(self.machine),))
        found = floors(cell.workload(1), self.machine, cell.objectives)
        if not found:
            raise ConfigError(f"--slo: {cell.source.name} has no requests of {cell.objectives}")
        for one in found[0].alone:
            tokens = one.call.input_tokens + one.call.output_tokens
            if tokens > self.machine.kv_tokens:
                raise ConfigError(
                    f"a request of {tokens:,} tokens does not fit {self.machine.name}, whose KV memory has "
                    f"{self.machine.kv_tokens:,}: choose a larger machine, or cut the trace"
                )
        return found

    def replay(self, fleet: Kinds, seeds: range) -> Sequence[Summary]:
        jobs = [Job(self.sized(fleet), self.wiring, seed) for seed in seeds]
        with Ticker(Console(stderr=True), named(fleet), jobs) as ticker:
            return run(jobs, processes=self.processes, watcher=ticker)

    def met(self, summary: Summary) -> float:
        """The share of the requests that were answered in time; the least of all classes that have objectives."""
        objectives = self.cell.objectives
        found = [] if objectives.every is None else [summary.values["goodput"]]
        found += [figures["goodput"] for name, figures in summary.classes.items() if objectives.asked(name) is not None]
        return min(found)

    def search(self, found: Sequence[Floor]) -> Sized:
        work = demand(found[0].alone, self.machine, self.cell.objectives)
        judge = Judge(self.replay, self.met, asked=self.share, seeds=self.seeds)

        def best(engines: int) -> Trial:
            return judge.trial((Kind(self.machine, engines),))

        return smallest(best, first=round(work.engines), least=1, most=self.most)


def plan(wanted: Plan, *, plot: Path | None = None, console: Console | None = None) -> int:
    """Search, and print what was found. The exit code: 0, or 1 where no size will do. Raises ConfigError."""
    console = console or Console(width=WIDTH, file=sys.stdout)
    if plot is not None:
        check_writable(plot)
    tell(wanted.cell.source)
    found = wanted.floors()
    faults = [line for floor in found for line in fault(floor, wanted.share, wanted.machine)]
    for line in faults:
        console.print(line, markup=False, highlight=False)
    if faults:
        return 1
    sized = wanted.search(found)
    console.print(table(sized.trials.values(), found))
    for line in answer(sized, found, wanted.share, wanted.machine):
        console.print(line, markup=False, highlight=False)
    if plot is not None:
        draw({"prompts and answers together": sized}, wanted.name, found, wanted.share, wanted.machine, plot)
    return 0 if sized.smallest is not None else 1
