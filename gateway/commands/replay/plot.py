"""A chart of a comparison, and the style of all charts. Needs matplotlib, an extra (``kvgate[demo]``)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.commands.replay.report import Comparison, number
from gateway.commands.replay.statistics import METRICS, Metric, Summary, interval, mean
from gateway.errors import ConfigError

# Grey for the other policies, blue for ours: they differ in print and for colour-blind readers.
OTHERS, OURS = "#9aa5b1", "#1f6feb"
INK, FAINT = "#24292f", "#d0d7de"

SMALL = 8
"""Font size of labels and notes, in points."""

LETTER = 0.0115
"""Average width of a letter, in inches for each point of its size."""


@contextmanager
def style() -> Iterator[None]:
    """A context in which charts are drawn in this style. Raises ConfigError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("no plot: it needs matplotlib (pip install 'kvgate[demo]')") from None
    with matplotlib.rc_context({"font.size": 9, "text.color": INK, "xtick.color": INK, "ytick.color": INK}):
        yield


def blank(width: float, height: float, title: str, note: str = "") -> Any:
    """A figure of this size in inches, whose parts make room for each other. ``note``: the text below all of it."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    figure.suptitle(wrapped(title, width - 0.2, 12), fontsize=12, fontweight="bold", x=0.01, ha="left")
    if note:
        figure.supxlabel(wrapped(note, width - 0.2, SMALL), fontsize=SMALL, x=0.01, ha="left")
    return figure


def bare(axes: Any) -> None:
    """Remove the frame."""
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(FAINT)
    axes.tick_params(length=0)


def wrapped(text: str, width: float, size: float) -> str:
    """Wrap the text into lines of about ``width`` inches at most, in letters of ``size`` points."""
    most = max(10, int(width / (LETTER * size)))
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, most) or [""])


def write(figure: Any, path: Path) -> None:
    """Write a PNG or an SVG, by the path's suffix. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, facecolor="white")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be written: {error}") from error


PANELS = ("ttft_mean", "ttft_p99", "tpot_mean", "hit_rate", "goodput")
BAR, ROW, MARGIN = 0.28, 0.75, 0.8
"""Inches: the height of a bar, of the text above a row of panels, and of the margins above and below all rows."""

MOST_CLASSES = 8
"""Classes in a chart at most: those with the most requests. The tables have all."""

LABEL = 0.45
"""Share of a panel to the right of its longest bar or interval, where the value is written."""


def draw(comparison: Comparison, path: Path) -> None:
    """Draw a row of panels for one cell, and one for each class: means over the seeds, with their 95 % intervals.

    Raises ConfigError without matplotlib, and for a path that cannot be written.
    """
    with style():
        write(compose(comparison), path)


def compose(comparison: Comparison) -> Any:
    """The figure that ``draw`` writes."""
    classes = sorted(comparison.classes, key=lambda one: -one.requests)[:MOST_CLASSES]
    rows = [comparison, *classes]
    row = ROW + BAR * len(comparison.summaries)
    figure = blank(12, MARGIN + row * len(rows), comparison.name, note(comparison))
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, one in zip(parts, rows, strict=True):
        if one is not comparison:
            name = one.name.removeprefix(f"{comparison.name}, ")
            title = wrapped(f"{name}: {one.requests:,} requests", 11.5, 10)
            part.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
        axes = part.subplots(1, len(PANELS))
        for place, metric in zip(axes, (METRICS[name] for name in PANELS), strict=True):
            bars(place, metric, one.summaries, one.first)
            place.set_title("\n".join(label(metric)), fontsize=SMALL, loc="left")
        for place in axes[1:]:
            place.set_yticklabels([])
    return figure


def bars(axes: Any, metric: Metric, summaries: Mapping[str, Sequence[Summary]], ours: str) -> None:
    """Draw one metric of each policy, with its interval. ``ours``: the policy with a colour of its own."""
    bare(axes)
    values = [mean(metric, found) * metric.scale for found in summaries.values()]
    # With few seeds an interval may be many times the mean: its line then ends at the edge of the panel.
    longest = 100.0 if metric.unit == "%" else 1.5 * max(values) or 1.0
    axes.barh(range(len(values)), values, color=[OURS if name == ours else OTHERS for name in summaries], height=0.72)
    for row, (value, found) in enumerate(zip(values, summaries.values(), strict=True)):
        end = value
        if len(found) > 1:
            it = interval([one.values[metric.name] * metric.scale for one in found])
            end = max(value, min(it.high, longest))
            axes.plot([max(it.low, 0.0), end], [row, row], color=INK, linewidth=1)
        axes.annotate(
            number(metric, value / metric.scale),
            (end, row),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )
    axes.set_yticks(range(len(values)), list(summaries))
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlim(0, longest * (1 + LABEL))


def label(metric: Metric) -> tuple[str, str]:
    """The label of a metric, in two lines."""
    what = f"{metric.title}, {metric.unit}" if metric.unit else metric.title
    return what, "less is better" if metric.less else "more is better"


def note(comparison: Comparison) -> str:
    return comparison.runs if comparison.seeds == 1 else f"{comparison.runs}; lines: 95 % interval of the mean"
