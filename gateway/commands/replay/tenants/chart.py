"""A chart of runs with tenants: for each scene, the figures of each way over the load. Needs matplotlib, an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.commands.replay.plot import FAINT, INK, OTHERS, OURS, SMALL, bare, blank, style, write
from gateway.commands.replay.tenants.figures import ALL, FIGURES, LIGHT
from gateway.commands.replay.tenants.report import Comparison

PANELS = (
    ("light tenants' TTFT p50, s", LIGHT, "ttft_p50"),
    ("light tenants' TTFT p99, s", LIGHT, "ttft_p99"),
    ("light tenants' goodput, %", LIGHT, "good"),
    ("goodput of all, requests/s", ALL, "good_rate"),
)
"""Each with its title, the group and the figure."""

LONGEST = 20.0
"""Seconds: a panel shows no longer ones, or the shorter ones could not be told apart."""

WIDTH, ROW, MARGIN = 12.0, 2.6, 1.2
"""Inches: of the chart, of each row of panels, and of the margins above and below all rows."""

DASHES: Sequence[Any] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
"""Lines of the ways that are not ours, and of ours, in the order of the request: they differ in print, too."""


def draw(comparisons: Sequence[Comparison], ours: frozenset[str], path: Path) -> None:
    """Draw a row of panels for each scene. ``ours``: the ways with a colour of their own.

    Raises ConfigError without matplotlib, and for a path that cannot be written.
    """
    with style():
        write(compose(comparisons, ours), path)


def compose(comparisons: Sequence[Comparison], ours: frozenset[str]) -> Any:
    """The figure that ``draw`` writes."""
    rows: dict[str, list[Comparison]] = {}
    for one in comparisons:
        rows.setdefault(one.scene, []).append(one)
    figure = blank(WIDTH, MARGIN + ROW * len(rows), "Who waits, by the load", note(comparisons))
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, (scene, found) in zip(parts, rows.items(), strict=True):
        part.suptitle(scene, fontsize=10, fontweight="bold", x=0.01, ha="left")
        axes = part.subplots(1, len(PANELS))
        for place, (title, group, name) in zip(axes, PANELS, strict=True):
            _panel(place, sorted(found, key=lambda one: one.load), ours, (group, name))
            place.set_title(title, fontsize=SMALL, loc="left")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=min(5, len(labels)), fontsize=SMALL, frameon=False)
    return figure


def _panel(axes: Any, found: Sequence[Comparison], ours: frozenset[str], of: tuple[str, str]) -> None:
    """One figure of each way over the load."""
    group, name = of
    metric = FIGURES[name]
    bare(axes)
    axes.spines["bottom"].set_visible(True)
    axes.spines["bottom"].set_color(FAINT)
    counts = {True: 0, False: 0}
    for way in found[0].outcomes:
        mine = way in ours
        dash = DASHES[counts[mine] % len(DASHES)]
        counts[mine] += 1
        values = [one.mean(way, group, name) * metric.scale for one in found if way in one.outcomes]
        if metric.unit == "s":
            values = [min(value, LONGEST) for value in values]
        loads = [one.load for one in found if way in one.outcomes]
        colour = OURS if mine else OTHERS
        axes.plot(loads, values, dash, color=colour, marker="o", markersize=3, linewidth=1.4, label=way)
    axes.set_ylim(bottom=0)
    axes.set_xticks(sorted({one.load for one in found}))
    axes.tick_params(labelsize=SMALL, colors=INK)
    axes.set_xlabel("load / what the fleet can serve", fontsize=SMALL)


def note(comparisons: Sequence[Comparison]) -> str:
    """How many runs the means are of."""
    seeds = len(next(iter(comparisons[0].outcomes.values())))
    of = "1 seed" if seeds == 1 else f"mean of {seeds} seeds"
    return f"Each point: {of}. Longer than {LONGEST:g} s is drawn as that."
