"""The style of the charts. Needs matplotlib, an extra (``kvgate[demo]``)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
