"""A chart of both runs: the share of prompt tokens served from cache, and the time to the first token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.commands.demo.drive import QUANTILES, Result
from gateway.commands.demo.scene import Scene

# Grey for round robin, blue for the default profile, dark for it through Envoy: they differ in print and for
# colour-blind readers.
COLOURS = ("#9aa5b1", "#1f6feb", "#0b2a5b")
INK, FAINT = "#24292f", "#d0d7de"


def draw(results: Sequence[Result], scene: Scene, path: Path) -> None:
    """Write a PNG, 1,800 x 800 pixels. Each result has at least one TTFT. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context({"font.size": 11, "text.color": INK, "xtick.color": INK}):
        # Padding in inches.
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.08)
        figure, (cached, first) = pyplot.subplots(1, 2, figsize=(9, 4), width_ratios=(1, 1.7), layout=layout)
        for axes in (cached, first):
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.spines["bottom"].set_color(FAINT)
            axes.tick_params(length=0)
            axes.set_yticks([])

        shares = [100 * result.cached_share for result in results]
        bars = cached.bar(range(len(results)), shares, width=0.62, color=COLOURS)
        cached.bar_label(bars, [f"{share:.0f} %" for share in shares], padding=3, fontweight="bold")
        cached.set_xticks([])
        cached.set_ylim(0, 112)
        cached.set_title("Prompt tokens served from cache", fontsize=11, loc="left")

        width = 0.76 / len(results)
        for number, result in enumerate(results):
            places = [place + (number - (len(results) - 1) / 2) * width for place in range(len(QUANTILES))]
            milliseconds = [1000 * value for value in result.ttft]
            bars = first.bar(places, milliseconds, width=width * 0.94, color=COLOURS[number], label=result.name)
            first.bar_label(
                bars, [f"{value:,.0f} ms" for value in milliseconds], padding=3, fontsize=10 if len(results) < 3 else 8
            )
        first.set_xticks(range(len(QUANTILES)), [f"p{100 * q:g}" for q in QUANTILES])
        first.set_ylim(0, 1.12 * max(1000 * value for result in results for value in result.ttft))
        first.set_title("Time to first token (less is better)", fontsize=11, loc="left")

        # The legend is below the panels, where no bar reaches it.
        figure.legend(loc="outside lower center", ncols=len(results), frameon=False)
        engines = f"{scene.engines} simulated engines"
        title = f"{scene.requests} chat requests on {scene.groups} shared system prompts, {engines}"
        figure.suptitle(title, fontsize=12.5, fontweight="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200, facecolor="white")
        pyplot.close(figure)
