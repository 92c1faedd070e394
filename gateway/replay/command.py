"""``kvgate replay``: a workload through several policies, and what each made of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from gateway.errors import ConfigError
from gateway.replay.agents import Agents, AgentShape
from gateway.replay.cell import Cell
from gateway.replay.compare import Job, run
from gateway.replay.groups import Groups, Shape
from gateway.replay.kinds import USUAL, Kind, Kinds, count, kinds
from gateway.replay.link import link
from gateway.replay.machines import machine
from gateway.replay.objectives import objectives
from gateway.replay.pairs import number, pairs
from gateway.replay.plot import draw
from gateway.replay.policies import Wiring
from gateway.replay.report import Comparison, check_writable, gather, save, tables
from gateway.replay.schedule import schedule
from gateway.replay.show import Ticker
from gateway.replay.sources import AgentsSource, GroupsSource, Source, TraceSource
from simulator.virtual.noise import Noise

WIDTH = 200
"""Characters of a table where nobody says how wide the terminal is: all of its columns."""


def compare(
    cell: Cell, wirings: Sequence[Wiring], *, seeds: int, processes: int, console: Console | None = None
) -> Comparison:
    """Run each policy with the seeds 1 to ``seeds``. Raises ConfigError where a workload or policy is no good."""
    console = console or Console(stderr=True)
    jobs = [Job(cell, wiring, seed) for wiring in wirings for seed in range(1, seeds + 1)]
    with Ticker(console, cell.name, jobs) as ticker:
        summaries = run(jobs, processes=processes, watcher=ticker)
    return gather(cell.name, settings(cell), summaries)


def replay(
    cell: Cell,
    wirings: Sequence[Wiring],
    *,
    seeds: int = 3,
    processes: int = 1,
    numbers: Path | None = None,
    plot: Path | None = None,
    console: Console | None = None,
) -> int:
    """Compare, print, and write what is asked for. The exit code: 0. Raises ConfigError."""
    if seeds < 1:
        raise ConfigError("seeds must be at least 1")
    if processes < 1:
        raise ConfigError("jobs must be at least 1")
    cell.workload(1)  # what is wrong with a trace is said once, here, and not by each worker
    for path in (numbers, plot):
        if path is not None:
            check_writable(path)
    tell(cell.source)
    comparison = compare(cell, wirings, seeds=seeds, processes=processes)
    if numbers is not None:
        save([comparison], numbers)
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDTH)
    for one in (comparison, *comparison.classes):
        for table in tables(one, console.width):
            console.print(table)
    if plot is not None:
        draw(comparison, plot)
    return 0


def tell(source: Source) -> None:
    """Print what a reader of the figures should know of a trace, before it runs."""
    for note in source.notes:
        print(f"kvgate: {note}", file=sys.stderr)


def cell(options: Mapping[str, Any]) -> Cell:
    """Of the command line's options, by name; those that are None or missing have their default. Raises ConfigError."""
    given = {name: value for name, value in options.items() if value is not None}
    names = ("speed", "event_delay", "cost_scale", "step_scale")
    rest: dict[str, Any] = {name: given[name] for name in names if name in given}
    rest["fleet"] = _fleet(given.get("endpoints", str(count(USUAL))), given.get("machine"))
    if "believed" in given:
        rest["believed"] = machine(given["believed"])
    if "slo" in given:
        rest["objectives"] = objectives(given["slo"])
    if "link" in given:
        rest["link"] = link(given["link"])
    if "change" in given:
        rest["schedule"] = schedule(given["change"])
    if "noise" in given:
        rest["noise"] = noise(given["noise"])
    return Cell(source(given), **rest, scrape=given.get("scrape", 1.0) or None)


def cells(options: Mapping[str, Any]) -> list[Cell]:
    """As ``cell``, of options of which ``workload``, ``speed``, ``machine`` and ``endpoints`` may each be several, with
    commas between them: one cell for each combination, once. Raises ConfigError."""
    workloads = [part for part in _parts(options["workload"]) if part is not None]
    if not workloads:
        raise ConfigError("name at least one trace")
    rest = [[(name, part) for part in _parts(options.get(name))] for name in ("endpoints", "machine", "speed")]
    kinds_asked = set(map(_kind, workloads))
    found = []
    for workload, choice in product(workloads, product(*rest)):
        ours, chosen = _kind(workload), dict(choice)
        # An option of another workload that is asked for, too, is that one's; of none, it is refused.
        given = {
            name: value
            for name, value in options.items()
            if not (kinds := _KINDS_WITH.get(name)) or ours in kinds or not kinds & kinds_asked
        }
        speed = None if chosen["speed"] is None else number("--speed", chosen["speed"])
        found.append(cell({**given, **chosen, "workload": workload, "speed": speed}))
    return list(dict.fromkeys(found))


def _parts(text: str | None) -> Sequence[str | None]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    return parts or [None]


TRACE = "trace"
_SHAPES: Mapping[str, type[Shape] | type[AgentShape]] = {Groups.name: Shape, Agents.name: AgentShape}
_KINDS_WITH: Mapping[str, frozenset[str]] = {
    "first": frozenset({TRACE}),
    **{
        field.name: frozenset(
            name for name, shape in _SHAPES.items() if field.name in {each.name for each in fields(shape)}
        )
        for shape in _SHAPES.values()
        for field in fields(shape)
    },
}
"""Of an option that not all workloads have: those that do."""


def _kind(workload: str) -> str:
    return workload if workload in _SHAPES else TRACE


def source(given: Mapping[str, Any]) -> Source:
    """Of the options that are given. Raises ConfigError where one is of another workload."""
    workload = given["workload"]
    ours = _SHAPES.get(workload)
    sizes = {field.name: given[field.name] for field in fields(ours) if field.name in given} if ours else {}
    for name, shape in _SHAPES.items():
        for field in fields(shape):
            if field.name in given and field.name not in sizes:
                raise ConfigError(f"--{field.name} is of the workload {name!r}")
    if ours is not None and "first" in given:
        raise ConfigError("--first is of a trace")
    if ours is Shape:
        return GroupsSource(Shape(**sizes))
    if ours is AgentShape:
        return AgentsSource(AgentShape(**sizes))
    if given.get("first", 1) < 1:
        raise ConfigError("first must be at least 1 request")
    return TraceSource(Path(workload), given.get("first"))


def noise(text: str) -> Noise:
    """A spread, of all steps; or single values, as ``Noise`` has them. Raises ConfigError."""
    if "=" in text:
        names = [field.name for field in fields(Noise)]
        values = {name: number("--noise", value) for name, value in pairs("--noise", text, names).items()}
    else:
        values = dict.fromkeys(("step", "prefill"), number("--noise", text))
    try:
        return Noise(**values)
    except ValueError as error:
        raise ConfigError(f"--noise: {error}") from None


def _fleet(endpoints: str, name: str | None) -> Kinds:
    """``endpoints``: how many of the machine ``name``, or kinds that say theirs."""
    if re.fullmatch(r"\s*-?\d+\s*", endpoints):
        return (Kind(USUAL[0].machine if name is None else machine(name), int(endpoints)),)
    if name is not None:
        raise ConfigError("--endpoints names machines already: leave out --machine, or give a number")
    return kinds(endpoints)


def settings(cell: Cell) -> dict[str, Any]:
    """A cell as plain values, for the JSON."""
    found: dict[str, Any] = {**asdict(cell), "source": {"name": cell.source.name, **asdict(cell.source)}}
    if "path" in found["source"]:
        found["source"]["path"] = found["source"]["path"].name
    return found
