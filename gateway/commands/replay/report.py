"""A comparison as tables on a terminal, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from gateway.commands.replay.statistics import METRICS, Interval, Metric, Summary, best, difference, mean
from gateway.errors import ConfigError

FORMAT = 1
"""Version of the JSON, raised with every change that an older reader would misread."""

COMPARED = ("ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "hit_rate", "goodput")
"""The metrics whose paired differences are shown."""


FRAME = 3
"""Characters that a column of a table takes beside its text."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one cell. ``name``: the cell's. ``summaries``: by policy, in the order of the request, one for each
    seed."""

    name: str
    settings: Mapping[str, Any]
    summaries: Mapping[str, Sequence[Summary]]

    @property
    def first(self) -> str:
        return next(iter(self.summaries))

    @property
    def seeds(self) -> int:
        return len(self.summaries[self.first])

    @property
    def requests(self) -> int:
        return self.summaries[self.first][0].requests

    @property
    def runs(self) -> str:
        """``1,000 requests, mean of 3 seeds``."""
        return f"{self.requests:,} requests, {'1 seed' if self.seeds == 1 else f'mean of {self.seeds} seeds'}"

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that have values."""
        known = self.summaries[self.first][0].values
        return [metric for metric in METRICS.values() if metric.name in known]

    @property
    def classes(self) -> list[Comparison]:
        """The comparison of each class of traffic."""
        return [self._of(name) for name in self.summaries[self.first][0].classes]

    def _of(self, name: str) -> Comparison:
        found = {
            policy: [
                replace(one, requests=int(one.classes[name]["requests"]), values=one.classes[name], classes={})
                for one in summaries
            ]
            for policy, summaries in self.summaries.items()
        }
        return Comparison(f"{self.name}, class {name}", self.settings, found)


def gather(name: str, settings: Mapping[str, Any], summaries: Sequence[Summary]) -> Comparison:
    """Make a comparison of at least one summary, in the order in which the policies are shown."""
    found: dict[str, list[Summary]] = {}
    for summary in summaries:
        found.setdefault(summary.policy, []).append(summary)
    return Comparison(name, settings, found)


def tables(comparison: Comparison, width: int) -> list[Table]:
    """The tables of the metrics and, if there are several policies, of the differences from the first one. Each is
    split into as many tables as its columns need in ``width`` characters."""
    several = len(comparison.summaries) > 1
    columns = []
    for metric in comparison.metrics:
        winner = best(metric, comparison.summaries) if several else None
        cells = {policy: number(metric, mean(metric, found)) for policy, found in comparison.summaries.items()}
        columns.append(_Column("\n".join(heading(metric)), cells, winner))
    found = _fitting(f"{comparison.name}: {comparison.runs}", columns, width)
    if several:
        rows = {policy: differences(comparison, policy) for policy in list(comparison.summaries)[1:]}
        columns = [
            _Column(METRICS[name].title, {policy: row[place] for policy, row in rows.items()})
            for place, name in enumerate(COMPARED)
        ]
        found += _fitting(against(comparison), columns, width)
    return found


def heading(metric: Metric) -> tuple[str, str]:
    """The heading of a metric in two lines: ``TTFT`` and ``mean, s``."""
    what, _, which = metric.title.partition(" ")
    return what, ", ".join(part for part in (which, metric.unit) if part)


def number(metric: Metric, value: float) -> str:
    """The value in the metric's unit, without the unit."""
    return f"{value * metric.scale:,.{metric.digits}f}"


def change(metric: Metric, found: Interval) -> str:
    """A change as ``+25 % (22..28)``. Shares are in points; an unknown interval is left out."""
    mid = f"{found.mid * 100:+.1f} {metric.unit_of_change}"
    if math.isinf(found.low) or math.isinf(found.high):
        return mid
    return f"{mid} ({found.low * 100:+.1f}..{found.high * 100:+.1f})"


def save(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write the comparisons as JSON. Raises ConfigError if that fails."""
    value = {"format": FORMAT, "cells": [asdict(comparison) for comparison in comparisons]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Check that a file can be written, before minutes of runs. Leaves nothing behind. Raises ConfigError."""
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table. ``cells``: by policy. ``winner``: the policy in bold."""

    heading: str
    cells: Mapping[str, str]
    winner: str | None = None

    @property
    def width(self) -> int:
        return FRAME + max(len(line) for text in (self.heading, *self.cells.values()) for line in text.split("\n"))


def _fitting(title: str, columns: Sequence[_Column], width: int) -> list[Table]:
    """Split the columns into tables that fit ``width``, each with at least one column; the first has the title."""
    policies = list(columns[0].cells)
    room = width - FRAME - 1 - max(len(policy) for policy in ("policy", *policies))
    groups: list[list[_Column]] = [[]]
    for column in columns:
        if groups[-1] and sum(one.width for one in groups[-1]) + column.width > room:
            groups.append([])
        groups[-1].append(column)
    found = []
    for group in groups:
        table = Table(title=title if group is groups[0] else None, title_justify="left", title_style="bold")
        table.add_column("policy", no_wrap=True)
        for column in group:
            table.add_column(column.heading, justify="right", no_wrap=True)
        for policy in policies:
            texts = (Text(one.cells[policy], "bold" if policy == one.winner else "") for one in group)
            table.add_row(Text(policy), *texts)
        found.append(table)
    return found


def against(comparison: Comparison) -> str:
    """The title of the differences."""
    note = "" if comparison.seeds == 1 else " (95 % interval over paired seeds)"
    return f"Against {comparison.first}{note}"


def differences(comparison: Comparison, policy: str) -> list[str]:
    """The differences of ``policy`` from the first one, in the order of ``COMPARED``."""
    ours, base = comparison.summaries[policy], comparison.summaries[comparison.first]
    return [change(METRICS[name], difference(METRICS[name], ours, base)) for name in COMPARED]
