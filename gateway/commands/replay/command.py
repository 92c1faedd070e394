"""``kvgate replay``: replays a workload with several policies and compares the results."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from gateway.commands.replay.agents import Agents, AgentShape
from gateway.commands.replay.compare import Job, Ticker, run
from gateway.commands.replay.fleet import USUAL, Kind, Kinds, count, kinds, link, machine
from gateway.commands.replay.groups import Groups, Shape
from gateway.commands.replay.objectives import objectives
from gateway.commands.replay.pairs import duration, number, pairs
from gateway.commands.replay.plot import draw
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.report import check_writable, gather, save, tables
from gateway.commands.replay.scene import Cell, schedule
from gateway.commands.replay.sources import GeneratedSource, Source, TraceSource
from gateway.errors import ConfigError
from simulator.virtual.noise import Noise

WIDTH = 200
"""Characters of a table if the width of the terminal is unknown: enough for all columns."""


def replay(
    cell: Cell,
    policies: Sequence[Policy],
    *,
    seeds: int,
    processes: int,
    numbers: Path | None,
    plot: Path | None,
) -> int:
    """Run each policy with the seeds 1 to ``seeds``, print the tables, and write the files that were asked for. Returns
    the exit code, 0. Raises ConfigError."""
    if seeds < 1:
        raise ConfigError("seeds must be at least 1")
    if processes < 1:
        raise ConfigError("jobs must be at least 1")
    cell.workload(1)  # an error in a trace is reported once, here, and not by each worker
    for path in (numbers, plot):
        if path is not None:
            check_writable(path)
    print_notes(cell.source)
    # With several gateways each policy runs with one, too: that is what they are compared with.
    among = [cell] if cell.deciders == 1 else [dataclasses.replace(cell, deciders=1), cell]
    jobs = [Job(one, policy, seed) for policy in policies for one in among for seed in range(1, seeds + 1)]
    summaries = run(jobs, Ticker(Console(stderr=True), cell.name, len(jobs)), processes=processes)
    comparison = gather(cell.name, settings(cell), summaries)
    if numbers is not None:
        save([comparison], numbers)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    for one in (comparison, *comparison.classes):
        for table in tables(one, console.width):
            console.print(table)
    if plot is not None:
        draw(comparison, plot)
    return 0


def print_notes(source: Source) -> None:
    """Print the notes on a trace before it runs: they matter to a reader of the figures."""
    for note in source.notes:
        print(f"kvgate: {note}", file=sys.stderr)


def cell(options: Mapping[str, Any]) -> Cell:
    """Make a cell from the command line's options, by name. An option that is None or missing has its default. Raises
    ConfigError."""
    given = {name: value for name, value in options.items() if value is not None}
    return Cell(source(given), speed=given.get("speed"), **scene_fields(given))


def scene_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``Scene`` from the command line's options, by name; those that are missing have their default.
    Raises ConfigError."""
    rest: dict[str, Any] = {name: given[name] for name in AS_GIVEN if name in given}
    rest["fleet"] = _fleet(given.get("endpoints", str(count(USUAL))), given.get("machine"))
    rest |= {field: read(given[name]) for name, (field, read) in READERS.items() if name in given}
    return {**rest, "scrape": given.get("scrape", 1.0) or None}


def cells(options: Mapping[str, Any]) -> list[Cell]:
    """Make cells as ``cell`` does. The options ``workload``, ``speed``, ``machine`` and ``endpoints`` may each have
    several values, separated by commas; each combination gives one cell. Raises ConfigError."""
    workloads = [part for part in _parts(options["workload"]) if part is not None]
    if not workloads:
        raise ConfigError("name at least one trace")
    rest = [[(name, part) for part in _parts(options.get(name))] for name in ("endpoints", "machine", "speed")]
    kinds_asked = set(map(_kind, workloads))
    found = []
    for workload, choice in product(workloads, product(*rest)):
        ours, chosen = _kind(workload), dict(choice)
        # An option of another requested workload applies to that one; an option of none is refused.
        given = {
            name: value
            for name, value in options.items()
            if not (kinds := _KINDS_WITH.get(name)) or ours in kinds or kinds_asked.isdisjoint(kinds)
        }
        speed = None if chosen["speed"] is None else number("--speed", chosen["speed"])
        found.append(cell({**given, **chosen, "workload": workload, "speed": speed}))
    return list(dict.fromkeys(found))


def _parts(text: str | None) -> Sequence[str | None]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    return parts or [None]


TRACE = "trace"
_SHAPES: Mapping[str, type[Shape] | type[AgentShape]] = {Groups.name: Shape, Agents.name: AgentShape}
_KINDS_WITH: Mapping[str, Sequence[str]] = {
    **{
        field.name: [kind for kind, other in _SHAPES.items() if field.name in other.__dataclass_fields__]
        for shape in _SHAPES.values()
        for field in fields(shape)
    },
    "first": [TRACE],
}
"""The workloads that have this option, which not all have."""


def _kind(workload: str) -> str:
    return workload if workload in _SHAPES else TRACE


def source(given: Mapping[str, Any]) -> Source:
    """The given options of this workload. Raises ConfigError for one that belongs to another workload."""
    ours = _kind(given["workload"])
    for name, having in _KINDS_WITH.items():
        if name in given and ours not in having:
            whose = "a trace" if having[0] == TRACE else f"the workload {having[0]!r}"
            raise ConfigError(f"--{name} is of {whose}")
    if ours != TRACE:
        return GeneratedSource(_SHAPES[ours](**{name: given[name] for name in _KINDS_WITH if name in given}))
    if given.get("first", 1) < 1:
        raise ConfigError("first must be at least 1 request")
    return TraceSource(Path(given["workload"]), given.get("first"))


def delay(text: str) -> float:
    """Read a time. Raises ConfigError."""
    seconds = duration(text.strip())
    if seconds is None:
        raise ConfigError(f"--delay: {text!r} must be a time such as 3ms or 0.1s")
    return seconds


def noise(text: str) -> Noise:
    """Read a spread of all steps, or single values of ``Noise``. Raises ConfigError."""
    if "=" in text:
        names = [field.name for field in fields(Noise)]
        values = {name: number("--noise", value) for name, value in pairs("--noise", text, names).items()}
    else:
        values = dict.fromkeys(("step", "prefill"), number("--noise", text))
    try:
        return Noise(**values)
    except ValueError as error:
        raise ConfigError(f"--noise: {error}") from None


AS_GIVEN = ("event_delay", "cost_scale", "step_scale", "deciders")
READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "believed": ("believed", machine),
    "slo": ("objectives", objectives),
    "link": ("link", link),
    "change": ("schedule", schedule),
    "noise": ("noise", noise),
    "delay": ("delay", delay),
}
"""The options of a cell that have to be read: the field of each, and its reader."""


def _fleet(endpoints: str, name: str | None) -> Kinds:
    """Read the fleet. ``endpoints``: how many engines of the machine ``name``, or kinds that name their own machine."""
    if re.fullmatch(r"\s*-?\d+\s*", endpoints):
        return (Kind(USUAL[0].machine if name is None else machine(name), int(endpoints)),)
    if name is not None:
        raise ConfigError("--endpoints names machines already: leave out --machine, or give a number")
    return kinds(endpoints)


def settings(cell: Cell) -> dict[str, Any]:
    """The cell as plain values, for the JSON."""
    found: dict[str, Any] = {**asdict(cell), "source": {"name": cell.source.name, **asdict(cell.source)}}
    if "path" in found["source"]:
        found["source"]["path"] = found["source"]["path"].name
    return found
