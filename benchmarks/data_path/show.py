"""The table, the targets and the chart."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.data_path.judge import Results, Verdict
from benchmarks.data_path.measure import ENCODER
from benchmarks.data_path.plan import UNASKED, Column
from benchmarks.data_path.rows import DIRECT, FLOOR, PLAIN

OTHERS, OURS = "#9aa5b1", "#1f6feb"
SHOWN = ("answer-2-known", "stream-2-known", "answer-128-known", "answer-2-fresh")
"""Columns of the chart, those that there are."""


def machine() -> str:
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    return f"load {load} on {os.cpu_count()} cores, Python {sys.version.split()[0]}"


def tables(results: Results, peers: Sequence[str], console: Console) -> None:
    """CPU, then latency, each beside its ratio to the cheapest cache-aware peer."""
    for latency, title in (
        (
            False,
            "CPU of the proxy's processes for each answer, microseconds (and against the cheapest cache-aware peer)",
        ),
        (True, "p50 that a proxy adds, milliseconds (direct: the engine's own)"),
    ):
        columns = [column for column in results.columns if column.connections and column.latency == latency]
        if not columns:
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for column in columns:
            table.add_column(column.name, justify="right")
        for row in results.rows:
            cells = [cell(results, row, column.name, peers) for column in columns]
            if any(cells):
                table.add_row(row, *cells)
        if not latency:
            for name in ("engines", "driver"):
                table.add_row(f"({_WHO[name]})", *[_other(results, name, column) for column in columns], style="dim")
        console.print(table)


def told(results: Results, versions: Mapping[str, str]) -> list[str]:
    """What stands beside the tables. ``versions``: of the builds that were measured, by their rows."""
    lines = ["Builds: " + ", ".join(f"{name} is {version}" for name, version in versions.items())] if versions else []
    differ = []
    for column in results.columns:
        noise = results.noise(column.name)
        if noise is not None and (said := f"{noise:.1%} in {column.unit}") not in differ:
            differ.append(said)
    if differ:
        lines.append(f"Equal rows of a round differ by {', '.join(differ)} (root mean square)")
    shares = {row: results.value(row, UNASKED.name) for row in results.rows} if UNASKED in results.columns else {}
    if shares:
        lines.append(
            "Unasked, % of a core: " + ", ".join(f"{row} {it:.2f}" for row, it in shares.items() if it is not None)
        )
    return lines


_WHO = {"engines": "mock engines", "driver": "wrk"}


def cell(results: Results, row: str, column: str, peers: Sequence[str]) -> str:
    """What counts in ``column``, and in brackets its ratio to the cheapest of ``peers``; empty if not measured."""
    value = results.value(row, column)
    if value is None:
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    best = results.cheapest(column, peers)
    ratio = None if best is None or row == DIRECT else results.ratio(row, best, column)
    return text if ratio is None else f"{text} ({ratio:.2f})"


def _other(results: Results, name: str, column: Column) -> str:
    values = [value for row in results.rows if (value := results.figure(row, column.name, name))]
    return f"{min(values):,.0f}" if values else ""


def targets(verdicts: Sequence[Verdict], console: Console) -> None:
    table = Table(title="Targets", title_justify="left")
    for name in ("", "row", "build", "against", "measured", "at most", "noise", ""):
        table.add_column(name, justify="right" if name in ("measured", "at most", "noise") else "left")
    for verdict in verdicts:
        table.add_row(
            *(verdict.target.name, verdict.row, verdict.kind, verdict.against or ""),
            *(f"{verdict.value:.2f}", f"{verdict.most:.2f}", share(verdict.noise)),
            "met" if verdict.met else "NOT MET",
        )
    console.print(table)


def share(noise: float | None) -> str:
    return "" if noise is None else f"{noise:.1%}"


def draw(results: Results, ours: Sequence[str], path: Path) -> None:
    """One panel for each of ``SHOWN``; who was not measured there has no bar, and what is no router is hatched. Raises
    ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot, ticker

    columns = [column for column in results.columns if column.name in SHOWN]
    if not columns:
        return
    rows = [row for row in results.rows if any(results.value(row, column.name) is not None for column in columns)]
    figure, axes = pyplot.subplots(1, len(columns), figsize=(3.6 * len(columns), 0.34 * len(rows) + 1.2), squeeze=False)
    for place, column in zip(axes[0], columns, strict=True):
        found = [
            (at, row, value) for at, row in enumerate(rows) if (value := results.value(row, column.name)) is not None
        ]
        values = [value for _, _, value in found]
        colours = [OURS if any(row.startswith(name) for name in ours) else OTHERS for _, row, _ in found]
        hatches = ["//" if row in (FLOOR, PLAIN, ENCODER) else "" for _, row, _ in found]
        bars = place.barh(
            [at for at, _, _ in found], values, color=colours, hatch=hatches, edgecolor="white", height=0.72
        )
        place.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
        place.set_ylim(-0.6, len(rows) - 0.4)
        place.xaxis.set_major_locator(ticker.MaxNLocator(4))
        place.tick_params(axis="x", labelsize=8)
        place.set_yticks(range(len(rows)), rows if place is axes[0][0] else [""] * len(rows), fontsize=8)
        place.invert_yaxis()
        place.margins(x=0.22)
        place.set_title(f"{column.name}, µs", fontsize=9, loc="left")
        place.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=144)
    pyplot.close(figure)
