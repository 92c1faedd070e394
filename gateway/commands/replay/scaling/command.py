"""``kvgate replay --scale``: compares fleets whose size follows a trigger, by what they serve and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.commands.replay.command import print_notes
from gateway.commands.replay.compare import Ticker, run
from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.floor import demand, floors
from gateway.commands.replay.legs import Legs
from gateway.commands.replay.objectives import USUAL, Objectives
from gateway.commands.replay.pairs import duration
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.report import check_writable
from gateway.commands.replay.scaling.autoscaler import Autoscaler
from gateway.commands.replay.scaling.triggers import USUAL as USUAL_TRIGGERS
from gateway.commands.replay.scaling.triggers import Trigger, triggers
from gateway.commands.replay.scaling.wave import Wave, Waved, wave
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.sources import TraceSource
from gateway.commands.replay.statistics import Summary, interval, summarise
from gateway.commands.replay.workload import Workload
from gateway.commands.replay.world import World
from gateway.errors import ConfigError
from gateway.framework import Role

JOIN = 60.0
"""Seconds that an engine takes to start: weights of a 70B model from local disks, and compiling."""

LONGEST = 86_400.0

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compared. ``cell``: its fleet is the largest. ``first``: engines at the beginning. ``join``: seconds."""

    cell: Cell
    policy: Policy
    triggers: Sequence[Trigger]
    join: float
    wave: Wave | None
    first: int
    seeds: int

    @property
    def name(self) -> str:
        moved = "" if self.wave is None else f", peak {self.wave.ratio:g} x trough every {self.wave.period:g} s"
        return f"{self.cell.name}{moved}, engines join after {self.join:g} s"

    def workload(self, seed: int) -> Workload:
        return Waved(self.cell.workload(seed), self.wave)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A run. ``hours``: of engines, that were paid. ``most``: engines at once."""

    trigger: str
    summary: Summary
    hours: float
    most: int

    @property
    def line(self) -> str:
        return f"{self.trigger}: {self.summary.line}, {self.hours:.2f} engine hours"


@dataclass(frozen=True, slots=True)
class ScaleJob:
    asked: Asked
    trigger: Trigger
    seed: int

    def do(self, progress: Callable[[float], None]) -> Scaled:
        asked, cell = self.asked, self.asked.cell
        made: list[Autoscaler] = []
        slo = cell.objectives.every or USUAL
        first = ceil(self.trigger.threshold) if self.trigger.kind == "fixed" else asked.first

        def gate(world: World, legs: Legs) -> Autoscaler:
            made.append(Autoscaler(world, legs, trigger=self.trigger, first=first, join=asked.join, slo=slo))
            return made[0]

        result = replay(asked.workload(self.seed), asked.policy, cell, seed=self.seed, progress=progress, gate=gate)
        return Scaled(self.trigger.name, summarise(result, cell.objectives), made[0].paid / HOUR, made[0].most)


def asked(cell: Cell, policy: Policy, options: Mapping[str, Any]) -> Asked:
    """From the command line's options, by name. Raises ConfigError."""
    if not isinstance(cell.source, TraceSource):
        raise ConfigError("--scale needs a trace: a generator in a closed loop asks for no more than it gets")
    if any(role is not Role.BOTH for role in cell.roles):
        raise ConfigError("--scale needs engines without roles")
    if cell.deciders > 1:
        raise ConfigError("--scale is with one gateway")
    text = options["scale"]
    chosen = triggers(USUAL_TRIGGERS if text == "usual" else text)
    if not chosen:
        raise ConfigError("--scale: name at least one trigger")
    join = JOIN if options["join"] is None else duration(options["join"])
    if join is None or join > LONGEST:
        raise ConfigError(f"--join: {options['join']!r} must be a time of at most a day, such as 60s")
    moved = None if options["wave"] is None else wave(options["wave"])
    if options["seeds"] < 1:
        raise ConfigError("seeds must be at least 1")
    first = options["start"]
    if first is None:
        objectives = cell.objectives if str(cell.objectives) else Objectives(every=USUAL)
        found = floors(cell.workload(1), cell.machines[0], objectives)
        first = max(1, round(demand(found[0].alone, cell.machines[0], objectives).engines))
    most = max([first, *(ceil(one.threshold) for one in chosen if one.kind == "fixed")])
    if first < 1 or most > cell.endpoints:
        raise ConfigError(f"--endpoints: {cell.endpoints} engines are too few: {most} are to run")
    return Asked(cell, policy, chosen, join, moved, first, options["seeds"])


def compare_scaling(asked: Asked, page: Path | None, *, processes: int) -> int:
    """Run each trigger with each seed, print the table, and write it as Markdown to ``page``. Returns the exit code,
    0. Raises ConfigError."""
    if page is not None:
        check_writable(page)
    print_notes(asked.cell.source)
    jobs = [ScaleJob(asked, one, seed) for one in asked.triggers for seed in range(1, asked.seeds + 1)]
    outcomes = run(jobs, Ticker(Console(stderr=True), "scaling", len(jobs)), processes=processes)
    rows = [row([one for one in outcomes if one.trigger == each.name]) for each in asked.triggers]
    title = f"{asked.name}: {outcomes[0].summary.requests:,} requests, {asked.seeds} seeds"
    table = Table(title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[0] else "right", no_wrap=True)
    for one in rows:
        table.add_row(*one)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    if page is not None:
        try:
            page.write_text(markdown(title, rows))
        except OSError as error:
            raise ConfigError(f"{page}: cannot be written: {error.strerror or error}") from error
    return 0


WIDTH = 130
"""Characters of a table if the width of the terminal is unknown: enough for all columns."""

HEADINGS = ("trigger", "goodput %", "engine hours", "at most", "TTFT mean, s", "TTFT p99, s", "TPOT p99, ms")


def row(outcomes: Sequence[Scaled]) -> list[str]:
    """Of one trigger's runs: means over the seeds, and half of the 95 % interval of goodput and of what was paid."""
    values = [one.summary.values for one in outcomes]
    good = interval([one["goodput"] * 100 for one in values])
    hours = interval([one.hours for one in outcomes])
    several = len(outcomes) > 1
    return [
        outcomes[0].trigger,
        f"{good.mid:.1f}" + (f" ± {good.high - good.mid:.1f}" if several else ""),
        f"{hours.mid:.2f}" + (f" ± {hours.high - hours.mid:.2f}" if several else ""),
        str(max(one.most for one in outcomes)),
        f"{fmean(one['ttft_mean'] for one in values):.2f}",
        f"{fmean(one['ttft_p99'] for one in values):.1f}",
        f"{fmean(one['tpot_p99'] for one in values) * 1000:.0f}",
    ]


def markdown(title: str, rows: Sequence[Sequence[str]]) -> str:
    lines = [f"{title}:", "", f"| {' | '.join(HEADINGS)} |", f"|---|{'--:|' * (len(HEADINGS) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(one)} |" for one in rows)]) + "\n"
