"""``kvgate replay --tenants``: compares ways to let the requests of several tenants wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gateway.commands.replay.compare import Ticker, run
from gateway.commands.replay.fleet import named
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.report import check_writable
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.tenants.chart import draw
from gateway.commands.replay.tenants.job import Capacity, FindCapacity, TenantJob
from gateway.commands.replay.tenants.report import Comparison, gather, markdown, save, tables
from gateway.commands.replay.tenants.scenes import TenantScene
from gateway.commands.replay.tenants.ways import OURS, Way
from gateway.errors import ConfigError

WIDTH = 170
"""Characters of a table if the width of the terminal is unknown: enough for all columns."""

LONGEST, HIGHEST = 86_400.0, 100.0
"""Bounds of a run's seconds and of a load, so that a mistyped number does not run for ever."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compared. ``scene``: the fleet, and the objectives that count. ``capacities``: requests a second, by
    scene; those of other scenes are found. ``loads``: relative to them. ``seconds``: of each run."""

    scenes: Sequence[TenantScene]
    ways: Sequence[Way]
    scene: Scene
    policy: Policy
    loads: Sequence[float]
    capacities: Mapping[str, float]
    seconds: float
    seeds: int

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= LONGEST:
            raise ConfigError(f"seconds must be in 1..{LONGEST:g}")
        if self.seeds < 1:
            raise ConfigError("seeds must be at least 1")
        for load in self.loads:
            if not 1 / HIGHEST <= load <= HIGHEST:
                raise ConfigError(f"--loads: must be in {1 / HIGHEST:g}..{HIGHEST:g}, found {load:g}")

    def jobs(self) -> list[TenantJob]:
        return [
            TenantJob(
                scene, self.scene, self.policy, way, load, load * self.capacities[scene.name], self.seconds, seed
            )
            for scene in self.scenes
            for load in self.loads
            for way in self.ways
            for seed in range(1, self.seeds + 1)
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Files:
    """Where the results are written; None: not at all."""

    numbers: Path | None = None
    plot: Path | None = None
    page: Path | None = None


def compare_tenants(asked: Asked, files: Files, *, processes: int) -> int:
    """Run each way on each scene at each load, print the tables, and write the files that were asked for. Returns the
    exit code, 0. Raises ConfigError."""
    if processes < 1:
        raise ConfigError("jobs must be at least 1")
    for path in (files.numbers, files.plot, files.page):
        if path is not None:
            check_writable(path)
    progress = Console(stderr=True)
    asked = _with_capacities(asked, progress, processes)
    jobs = asked.jobs()
    outcomes = run(jobs, Ticker(progress, "tenants", len(jobs)), processes=processes)
    comparisons = gather(outcomes)
    if files.numbers is not None:
        save(comparisons, settings(asked), files.numbers)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    for one in comparisons:
        for table in tables(one):
            console.print(table)
    if files.page is not None:
        _write(comparisons, files.page)
    if files.plot is not None:
        draw(comparisons, OURS, files.plot)
    return 0


def _with_capacities(asked: Asked, progress: Console, processes: int) -> Asked:
    """Find the capacity of each scene for which none is given."""
    unknown = [scene for scene in asked.scenes if scene.name not in asked.capacities]
    if not unknown:
        return asked
    finders = [FindCapacity(scene, asked.scene, asked.policy) for scene in unknown]
    found: list[Capacity] = run(finders, Ticker(progress, "capacity", len(finders)), processes=processes)
    capacities = {**asked.capacities, **{one.scene: one.rate for one in found}}
    return Asked(
        asked.scenes, asked.ways, asked.scene, asked.policy, asked.loads, capacities, asked.seconds, asked.seeds
    )


def settings(asked: Asked) -> dict[str, Any]:
    """What was compared, as plain values for the JSON."""
    return {
        "fleet": named(asked.scene.fleet),
        "objectives": str(asked.scene.objectives),
        "policy": asked.policy.name,
        "seconds": asked.seconds,
        "capacities": dict(asked.capacities),
    }


def _write(comparisons: Sequence[Comparison], path: Path) -> None:
    try:
        path.write_text("\n".join(map(markdown, comparisons)))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
