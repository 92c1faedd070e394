"""The tables and charts of docs/benchmarks.md, from what ``benchmarks.placement`` measured.

Each table stands between two marks, ``<!-- placement:NAME -->`` and ``<!-- /placement:NAME -->``: what is between them
is replaced, the words around are a person's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.marks import fill
from benchmarks.placement_chart import draw_grid
from gateway.commands.replay.report import COMPARED, Comparison, against, change, differences, heading, number
from gateway.commands.replay.statistics import METRICS, Metric, Summary, best, difference, mean

TTFT, LAST, GOODPUT, BUSY = (METRICS[name] for name in ("ttft_mean", "ttft_p99", "goodput", "busy_ratio"))
CHARTS = {"goodput": "placement-goodput.png", "ttft_mean": "placement-ttft.png"}
"""Metric -> file in docs/images."""


def write(page: Path, cells: Sequence[Comparison], varied: Sequence[Comparison], fits: Sequence[Comparison]) -> None:
    """Put every table in its place. Raises ConfigError where the page lacks one."""
    text = page.read_text()
    tables: dict[str, Callable[[], str]] = {
        "verdicts": lambda: verdicts(cells),
        "overall": lambda: overall(cells),
        "variants": lambda: variants(varied),
        "fit": lambda: fitting(fits),
        "cells": lambda: "\n".join(f"### {cell.name}\n\n{markdown(cell)}" for cell in cells),
        "runs": lambda: runs(cells),
    }
    for name, make in tables.items():
        text = fill(page, text, f"placement:{name}", make())
    page.write_text(text)


def charts(page: Path, cells: Sequence[Comparison]) -> None:
    """Beside the page, in ``images``. Raises ConfigError without matplotlib."""
    for name, file in CHARTS.items():
        draw_grid(cells, name, page.parent / "images" / file, columns=3)


def verdicts(cells: Sequence[Comparison]) -> str:
    """The first policy (ours) against the best of each cell, and against all: one with a worse mean but less noise may
    be better for sure where the best is not. Its p99 of TTFT against those whose goodput is not below its own for sure,
    itself among them."""
    lines = [
        "| cell | goodput, % | best other | difference | best or tied | TTFT mean, s | ÷ best | TTFT p99, s "
        "| ÷ best with its goodput | busiest ÷ mean |",
        "|---|--:|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    ratios = []
    for cell in cells:
        ours = cell.summaries[cell.first]
        others = {policy: found for policy, found in cell.summaries.items() if policy != cell.first}
        rival = best(GOODPUT, others)
        better = [policy for policy, found in others.items() if not tied(GOODPUT, ours, found)]
        verdict = f"**no**: {', '.join(better)}" if better else "yes"
        fastest = best(TTFT, cell.summaries)
        equals = [found for found in cell.summaries.values() if tied(GOODPUT, found, ours)]
        last = mean(LAST, ours) / min(mean(LAST, found) for found in equals)
        ratios.append(mean(TTFT, ours) / mean(TTFT, cell.summaries[fastest]))
        lines.append(
            f"| {cell.name} | {number(GOODPUT, mean(GOODPUT, ours))} "
            f"| {rival} {number(GOODPUT, mean(GOODPUT, others[rival]))} "
            f"| {change(GOODPUT, difference(GOODPUT, ours, others[rival]))} "
            f"| {verdict} "
            f"| {number(TTFT, mean(TTFT, ours))} | {ratios[-1]:.2f} ({fastest}) "
            f"| {number(LAST, mean(LAST, ours))} | {last:.2f} "
            f"| {number(BUSY, mean(BUSY, ours))} |"
        )
    lines.append(f"| geometric mean | | | | | | {geometric_mean(ratios):.3f} | | | |")
    return "\n".join(lines)


def overall(cells: Sequence[Comparison]) -> str:
    """Each policy against the best of each cell: geometric means of ratios, means and worst of differences."""
    ratios = ("ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean")
    titles = [f"{METRICS[name].title} ÷ best" for name in ratios]
    lines = [
        f"| policy | {' | '.join(titles)} | worst TTFT mean ÷ best | goodput below best, pp | worst | busiest ÷ mean |",
        "|---|" + "--:|" * 8,
    ]
    rows = []
    for policy in cells[0].summaries:
        against = {
            name: [
                mean(METRICS[name], cell.summaries[policy])
                / mean(METRICS[name], cell.summaries[best(METRICS[name], cell.summaries)])
                for cell in cells
            ]
            for name in ratios
        }
        below = [
            100 * (mean(GOODPUT, cell.summaries[best(GOODPUT, cell.summaries)]) - mean(GOODPUT, cell.summaries[policy]))
            for cell in cells
        ]
        busy = max(mean(BUSY, cell.summaries[policy]) for cell in cells)
        figures = [geometric_mean(against[name]) for name in ratios]
        cells_ = " | ".join(f"{figure:.2f}" for figure in (*figures, max(against["ttft_mean"])))
        rows.append((fmean(below), f"| {policy} | {cells_} | {fmean(below):.1f} | {max(below):.1f} | {busy:.2f} |"))
    return "\n".join([*lines, *(row for _, row in sorted(rows))])


def variants(varied: Sequence[Comparison]) -> str:
    """What the default loses where it is told wrongly; empty where none of these cells were run."""
    if not varied:
        return ""
    names = list(varied[0].summaries)[1:]
    parts = []
    for metric in (GOODPUT, TTFT):
        parts.append(f"{metric.title}, against what it is with all of it right:\n")
        parts.append(f"| cell | {' | '.join(names)} |")
        parts.append("|---|" + "--:|" * len(names))
        for cell in varied:
            base = cell.summaries[cell.first]
            shown = [change(metric, difference(metric, cell.summaries[name], base)) for name in names]
            parts.append(f"| {cell.name} | {' | '.join(shown)} |")
        parts.append("")
    return "\n".join(parts)


def fitting(fits: Sequence[Comparison]) -> str:
    """What the fit of costs is worth: the first column's against the second's."""
    lines = ["| cell | goodput fitted, % | against not fitted | TTFT mean fitted, s | against not fitted |"]
    lines.append("|---|--:|--:|--:|--:|")
    for cell in fits:
        fitted, unfitted = cell.summaries.values()
        shown = [
            text
            for metric in (GOODPUT, TTFT)
            for text in (number(metric, mean(metric, fitted)), change(metric, difference(metric, fitted, unfitted)))
        ]
        lines.append(f"| {cell.name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def runs(cells: Sequence[Comparison]) -> str:
    """What it took."""
    every = [one for cell in cells for found in cell.summaries.values() for one in found]
    seconds = [one.cpu_seconds for one in every]
    return (
        f"{len(every)} runs of {min(one.requests for one in every):,} to {max(one.requests for one in every):,} "
        f"requests, {sum(seconds) / 60:.0f} minutes of one core in all; the slowest run took {max(seconds):.0f} s."
    )


def markdown(comparison: Comparison) -> str:
    """Both tables; the best figures in bold."""
    metrics = comparison.metrics
    winners = [best(metric, comparison.summaries) for metric in metrics]
    lines = [
        "| policy | " + " | ".join(" ".join(heading(metric)) for metric in metrics) + " |",
        "|---|" + "--:|" * len(metrics),
    ]
    for policy, summaries in comparison.summaries.items():
        texts = [number(metric, mean(metric, summaries)) for metric in metrics]
        cells = [f"**{text}**" if winner == policy else text for text, winner in zip(texts, winners, strict=True)]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    if len(comparison.summaries) > 1:
        lines += [
            "",
            f"{against(comparison)}:",
            "",
            "| policy | " + " | ".join(METRICS[name].title for name in COMPARED) + " |",
            "|---|" + "--:|" * len(COMPARED),
        ]
        for policy in list(comparison.summaries)[1:]:
            lines.append(f"| {policy} | " + " | ".join(differences(comparison, policy)) + " |")
    return "\n".join(lines) + "\n"


def tied(metric: Metric, ours: Sequence[Summary], theirs: Sequence[Summary]) -> bool:
    """Whether ``ours`` is as good as ``theirs``, or the paired interval of their difference does not exclude it."""
    found = difference(metric, ours, theirs)
    return found.low <= 0 if metric.less else found.high >= 0


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one value above 0."""
    return math.exp(fmean(map(math.log, values)))
