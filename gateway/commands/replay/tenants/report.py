"""Runs with tenants as tables on a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from gateway.commands.replay.report import number
from gateway.commands.replay.tenants.figures import ALL, FIGURES, LIGHT, Outcome
from gateway.errors import ConfigError

FORMAT = 1
"""Version of the JSON, raised with every change that an older reader would misread."""


class Column(NamedTuple):
    """One column: a figure of a group. ``title``: in two lines."""

    title: str
    group: str
    figure: str

    @property
    def unit(self) -> str:
        return FIGURES[self.figure].unit


COLUMNS = (
    Column("light\nTTFT p50, s", LIGHT, "ttft_p50"),
    Column("light\nTTFT p99, s", LIGHT, "ttft_p99"),
    Column("light\ngoodput, %", LIGHT, "good"),
    Column("goodput\nof all, /s", ALL, "good_rate"),
    Column("served\n/s", ALL, "served_rate"),
    Column("cached\n%", ALL, "hit_rate"),
    Column("light's\nshed, %", LIGHT, "refused"),
    Column("all\nshed, %", ALL, "refused"),
    Column("light's part of\nengine time, %", LIGHT, "engine_share"),
)
"""Of the table that compares the ways."""

BY_TENANT = ("ttft_p50", "ttft_p99", "good", "served_rate", "hit_rate", "refused", "engine_share")
"""Figures of the table of tenants."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ways on one scene at one load. ``outcomes``: by way, in the order of the request, one for each seed."""

    scene: str
    load: float
    outcomes: Mapping[str, Sequence[Outcome]]

    @property
    def name(self) -> str:
        """Such as ``greedy-long, 1.2 times what the fleet can serve: 40.1 requests/s, mean of 2 seeds``."""
        runs = next(iter(self.outcomes.values()))
        seeds = "1 seed" if len(runs) == 1 else f"mean of {len(runs)} seeds"
        return f"{self.scene}, {self.load:g} times what the fleet can serve: {runs[0].rate:.1f} requests/s, {seeds}"

    def mean(self, way: str, group: str, figure: str) -> float:
        """Over the seeds; 0 for a group that sent nothing."""
        return fmean(one.groups.get(group, {}).get(figure, 0.0) for one in self.outcomes[way])

    @property
    def tenants(self) -> list[str]:
        """Those who sent something."""
        found = {name for runs in self.outcomes.values() for one in runs for name in one.groups}
        return sorted(found - {ALL, LIGHT})


def gather(outcomes: Sequence[Outcome]) -> list[Comparison]:
    """One comparison for each scene and load, in the order of the outcomes."""
    found: dict[tuple[str, float], dict[str, list[Outcome]]] = {}
    for one in outcomes:
        found.setdefault((one.scene, one.load), {}).setdefault(one.way, []).append(one)
    return [Comparison(scene, load, ways) for (scene, load), ways in found.items()]


def tables(comparison: Comparison) -> list[Table]:
    """The ways, and the tenants of each way."""
    table = Table(title=comparison.name, title_justify="left", title_style="bold")
    table.add_column("way", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    for way in comparison.outcomes:
        table.add_row(Text(way), *_row(comparison, way))
    return [table, _tenants(comparison)]


def _row(comparison: Comparison, way: str) -> list[str]:
    return [number(FIGURES[one.figure], comparison.mean(way, one.group, one.figure)) for one in COLUMNS]


def _tenants(comparison: Comparison) -> Table:
    table = Table()
    for heading in ("way", "tenant"):
        table.add_column(heading, no_wrap=True)
    for figure in BY_TENANT:
        metric = FIGURES[figure]
        title = f"{metric.title}, {metric.unit}" if metric.unit else metric.title
        table.add_column(title, justify="right", no_wrap=True)
    for way in comparison.outcomes:
        for place, tenant in enumerate(comparison.tenants):
            values = (number(FIGURES[figure], comparison.mean(way, tenant, figure)) for figure in BY_TENANT)
            table.add_row(
                Text("" if place else way), Text(tenant), *values, end_section=tenant == comparison.tenants[-1]
            )
    return table


def markdown(comparison: Comparison) -> str:
    """The table of the ways, for a page."""
    head = ["", *(column.title.replace("\n", " ") for column in COLUMNS)]
    lines = [f"**{comparison.name}**", "", _line(head), _line(["---", *["--:"] * len(COLUMNS)])]
    return "\n".join(lines + [_line([way, *_row(comparison, way)]) for way in comparison.outcomes]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def save(comparisons: Sequence[Comparison], settings: Mapping[str, Any], path: Path) -> None:
    """Write all runs as JSON. Raises ConfigError if that fails."""
    runs = [asdict(one) for comparison in comparisons for found in comparison.outcomes.values() for one in found]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": FORMAT, "settings": settings, "runs": runs}, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
