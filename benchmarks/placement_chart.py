"""A metric in every cell of a grid, as one picture: a panel for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.commands.replay.plot import BAR, SMALL, bars, blank, label, note, style, wrapped, write
from gateway.commands.replay.report import Comparison
from gateway.commands.replay.statistics import METRICS


def draw_grid(comparisons: Sequence[Comparison], name: str, path: Path, columns: int = 4) -> None:
    """Draw the metric ``name`` of ``METRICS`` in every cell. Raises ConfigError as ``plot.draw``."""
    with style():
        write(compose_grid(comparisons, name, columns), path)


def compose_grid(comparisons: Sequence[Comparison], name: str, columns: int) -> Any:
    """The figure that ``draw_grid`` writes."""
    metric = METRICS[name]
    columns = min(columns, len(comparisons))
    rows = -(-len(comparisons) // columns)
    most = max(len(comparison.summaries) for comparison in comparisons)
    # Policies' names stand beside the first column only.
    room = (12 - 1.8) / columns - 0.2
    titles = [wrapped(comparison.name.replace(", ", "\n"), room, SMALL) for comparison in comparisons]
    lines = max(title.count("\n") + 1 for title in titles)
    size = rows * (BAR * most + 0.15 * lines + 0.3) + 0.8
    figure = blank(12, size, ", ".join(label(metric)), note(comparisons[0]))
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for number_, (place, comparison) in enumerate(zip(places, comparisons, strict=False)):
        bars(place, metric, comparison.summaries, comparison.first)
        place.set_title(titles[number_], fontsize=SMALL, loc="left")
        if number_ % columns:
            place.set_yticklabels([])
    for place in places[len(comparisons) :]:
        place.set_visible(False)
    return figure
