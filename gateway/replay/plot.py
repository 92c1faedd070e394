"""Comparisons as pictures: one cell in four panels, and a whole grid as one panel for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.replay.report import Comparison, number
from gateway.replay.statistics import METRICS, Metric, Summary, interval, mean

# A grey for what one would do anyway, a blue for us: told apart in print and by colour-blind eyes.
OTHERS, OURS = "#9aa5b1", "#1f6feb"
INK, FAINT = "#24292f", "#d0d7de"

PANELS = ("ttft_mean", "tpot_mean", "hit_rate", "goodput")
HEIGHT, MARGIN = 0.28, 1.3
"""Inches: of a bar, and of what stands above and below all of them."""


def draw(comparison: Comparison, path: Path) -> None:
    """One cell: means over the seeds, with their 95 % intervals. PNG or SVG, by ``path``'s suffix.

    Raises ImportError without matplotlib.
    """
    names = tuple(comparison.summaries)
    with _figure(path, len(PANELS), 1, 10, MARGIN + HEIGHT * len(names), comparison.name) as axes:
        for place, metric in zip(axes[0], (METRICS[name] for name in PANELS), strict=True):
            _bars(place, metric, comparison.summaries, comparison.first)
            place.set_title(_label(metric), fontsize=10, loc="left")
        for place in axes[0][1:]:
            place.set_yticklabels([])


def draw_grid(comparisons: Sequence[Comparison], name: str, path: Path, columns: int = 4) -> None:
    """The figure ``name`` of ``METRICS`` in every cell. Raises ImportError without matplotlib."""
    metric = METRICS[name]
    rows = -(-len(comparisons) // columns)
    most = max(len(comparison.summaries) for comparison in comparisons)
    size = rows * (HEIGHT * most + 0.6) + 0.6
    with _figure(path, min(columns, len(comparisons)), rows, 12, size, _label(metric)) as axes:
        places = [place for row in axes for place in row]
        for number_, (place, comparison) in enumerate(zip(places, comparisons, strict=False)):
            _bars(place, metric, comparison.summaries, comparison.first)
            place.set_title(comparison.name.replace(", ", "\n"), fontsize=8, loc="left")
            if number_ % columns:
                place.set_yticklabels([])
        for place in places[len(comparisons) :]:
            place.set_visible(False)


def _bars(axes: Any, metric: Metric, summaries: Mapping[str, Sequence[Summary]], ours: str) -> None:
    values = [mean(metric, found) * metric.scale for found in summaries.values()]
    colours = [OURS if policy == ours else OTHERS for policy in summaries]
    bars = axes.barh(range(len(values)), values, color=colours, height=0.72)
    axes.bar_label(bars, [number(metric, value / metric.scale) for value in values], padding=3, fontsize=8)
    for row, found in enumerate(summaries.values()):
        if len(found) > 1:
            it = interval([one.values[metric.name] * metric.scale for one in found])
            axes.plot([it.low, it.high], [row, row], color=INK, linewidth=1)
    axes.set_yticks(range(len(values)), list(summaries))
    axes.invert_yaxis()
    axes.set_xticks([])
    # A share of all is seen against all: the best of nothing would be a full bar.
    axes.set_xlim(0, 130 if metric.unit == "%" else 1.3 * max(values) or 1)


@contextmanager
def _figure(path: Path, columns: int, rows: int, width: float, height: float, title: str) -> Iterator[list[list[Any]]]:
    """``rows`` x ``columns`` axes in the house's style; the picture is written when all is drawn. Inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context({"font.size": 9, "text.color": INK, "ytick.color": INK}):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), layout=layout, squeeze=False)
        try:
            for place in axes.flat:
                place.spines[["top", "right", "bottom"]].set_visible(False)
                place.spines["left"].set_color(FAINT)
                place.tick_params(length=0)
            figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
            yield axes.tolist()
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150, facecolor="white")
        finally:
            pyplot.close(figure)


def _label(metric: Metric) -> str:
    better = "less is better" if metric.less else "more is better"
    return f"{metric.title}, {metric.unit} ({better})" if metric.unit else f"{metric.title} ({better})"
