"""A chart of a plan: for each size that was tried, the share of requests answered in time, and the slowest waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.commands.replay.floor import Floor
from gateway.commands.replay.plan_report import answer
from gateway.commands.replay.plot import FAINT, INK, OTHERS, OURS, SMALL, blank, style, write
from gateway.commands.replay.sizes import Sized, Trial
from gateway.commands.replay.statistics import METRICS, mean
from simulator.virtual.machine import Machine

COLOURS, MARKERS = (OURS, "#bf6a02"), ("o", "s")
"""The colours of fleets without roles and with them. Colour-blind readers can distinguish them; in print the markers
differ."""


def draw(
    found: Mapping[str, Sized], name: str, floors: Sequence[Floor], share: float, machine: Machine, path: Path
) -> None:
    """Write the chart. ``found``: the sizes by the name of the fleet's layout. ``name``: the workload's. Raises
    ConfigError without matplotlib, and for a path that cannot be written."""
    with style():
        write(compose(found, name, floors, share, machine), path)


def compose(found: Mapping[str, Sized], name: str, floors: Sequence[Floor], share: float, machine: Machine) -> Any:
    """The figure that ``draw`` writes."""
    from matplotlib.ticker import MaxNLocator

    asked = floors[0].objectives.judged(floors[0].traffic)
    said = [answer(sized, floors, share, machine)[0] for sized in found.values()]
    figure = blank(11, 6, "\n".join(said), name)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.tick_params(length=0)
    for (layout, sized), colour, marker in zip(found.items(), COLOURS, MARKERS, strict=False):
        trials = [sized.trials[size] for size in sorted(sized.trials)]
        _shares(upper, trials, layout, colour, marker)
        waits = [mean(METRICS["ttft_p99"], trial.summaries) for trial in trials]
        lower.plot([trial.engines for trial in trials], waits, color=colour, marker=marker, markersize=5, linewidth=1)
        if sized.smallest is not None:
            ring = {"marker": "o", "markersize": 13, "markerfacecolor": "none", "color": INK, "linestyle": ""}
            upper.plot([sized.smallest.engines], [sized.smallest.share.mid * 100], **ring)
    upper.axhline(share * 100, color=INK, linewidth=1, linestyle="--", label=f"asked for: {share * 100:g} %")
    floor = min(floor.share for floor in floors) * 100
    upper.axhline(floor, color=OTHERS, linewidth=1, linestyle=":", label=f"the most that any size can: {floor:.1f} %")
    upper.set_ylim(0, 104)
    upper.set_title(f"answered within {floors[0].objectives}, % of the requests", fontsize=9, loc="left")
    lower.set_title("TTFT p99, s", fontsize=9, loc="left")
    if asked.ttft is not None:
        lower.axhline(asked.ttft, color=INK, linewidth=1, linestyle="--")
    lower.set_ylim(bottom=0)
    lower.set_xlabel("engines")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.legend(loc="outside right upper", fontsize=SMALL, frameon=False)
    return figure


def _shares(axes: Any, trials: Sequence[Trial], layout: str, colour: str, marker: str) -> None:
    shares = [trial.share for trial in trials]
    axes.errorbar(
        [trial.engines for trial in trials],
        [it.mid * 100 for it in shares],
        yerr=(
            [100 * (it.mid - max(it.low, 0.0)) for it in shares],
            [100 * (min(it.high, 1.0) - it.mid) for it in shares],
        ),
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1,
        capsize=3,
        label=layout,
    )
