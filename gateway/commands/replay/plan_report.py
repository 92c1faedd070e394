"""The result of a plan: in words, as a table of 80 columns, and as a chart: for each size that was tried, the share of
requests answered in time, and the slowest waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from gateway.commands.replay.fleet import Kinds, count
from gateway.commands.replay.floor import Floor
from gateway.commands.replay.plot import FAINT, INK, OTHERS, OURS, SMALL, blank, style, write
from gateway.commands.replay.report import number
from gateway.commands.replay.sizes import Sized, Trial
from gateway.commands.replay.statistics import METRICS, mean
from gateway.framework import Role
from simulator.virtual.machine import Machine

FIGURES = ("ttft_p50", "ttft_p99", "tpot_p99", "hit_rate")
HEADINGS = (
    *("engines", "within\n%", "95 %\ninterval"),
    *("TTFT\np50, s", "TTFT\np99, s", "TPOT\np99, ms", "hits\n%"),
    *("seeds", "does"),
)
"""The column headings: with the longest figures the table has 80 columns."""

FEW = 100
"""Requests for each engine: with fewer, most of the run is caches filling up."""


def fault(floor: Floor, share: float, machine: Machine) -> list[str]:
    """Why ``share`` of the requests cannot be reached at any size, and what can be; empty if it can."""
    if floor.share >= share:
        return []
    who = _who(floor.traffic)
    slo, slowest = floor.objectives.judged(floor.traffic), floor.slowest
    ttft, tpot, what = floor.ttft(share), floor.tpot(share), f"{share * 100:g} %"
    lines = []
    if slo.ttft is not None and ttft > slo.ttft:
        lines.append(
            f"{what} {who} within a TTFT of {slo.ttft:g} s cannot be had at any size: on {machine.name}, prompts of "
            f"{slowest.call.input_tokens:,} tokens take {slowest.ttft:.1f} s alone, of which {slowest.new:,} are new. "
            f"The best for {what} is {ttft:.2f} s."
        )
    if slo.tpot is not None and tpot > slo.tpot:
        lines.append(
            f"{what} {who} within a TPOT of {slo.tpot * 1000:g} ms cannot be had at any size: a step of "
            f"{machine.name} takes {tpot * 1000:.1f} ms for a request alone."
        )
    if not lines:
        lines.append(f"{what} {who} within {floor.objectives} cannot be had at any size.")
    most = int(floor.share * 1000) / 10  # rounded down: a higher share is out of reach
    less = f"for less (--share {most:g})" if most else "for a longer time"
    lines.append(f"At most {floor.share * 100:.1f} % {who} can: ask {less}, or a faster machine.")
    return lines


def table(trials: Iterable[Trial], floors: Sequence[Floor], name: str) -> Table:
    """All sizes that were tried, in order, each with its best layout. ``name``: the title's, for all of them."""
    title = f"{name}, within {floors[0].objectives}"
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), title_justify="left", title=title)
    for heading in HEADINGS:
        found.add_column(heading, justify="right", no_wrap=True)
    for trial in sorted(trials, key=lambda trial: trial.engines):
        it = trial.share
        found.add_row(
            layout(trial.fleet),
            f"{it.mid * 100:.1f}",
            f"{max(it.low, 0.0) * 100:.1f}..{min(it.high, 1.0) * 100:.1f}",
            *(number(METRICS[name], mean(METRICS[name], trial.summaries)) for name in FIGURES),
            str(len(trial.shares)),
            trial.verdict.value,
        )
    return found


def answer(sized: Sized, floors: Sequence[Floor], share: float, machine: Machine) -> list[str]:
    """The number of engines that is needed, in lines of text."""
    most = max(sized.trials.values(), key=lambda trial: trial.engines)
    objectives = floors[0].objectives
    if (found := sized.smallest) is None:
        why = "more do not help" if sized.helpless else "try more with --most"
        return [
            f"{_answer(most.fleet, machine)} {most.share.mid * 100:.1f} % within {objectives}, not "
            f"{share * 100:g} %: {why}. At most {min(floor.share for floor in floors) * 100:.1f} % can be had."
        ]
    seeds = f"{len(found.shares)} seeds"
    lines = [f"{_answer(found.fleet, machine)} {found.share.mid * 100:.1f} % within {objectives} (mean of {seeds})."]
    fewer = sized.trials.get(found.engines - 1)
    if fewer is not None:
        lines.append(f"One less answers {fewer.share.mid * 100:.1f} %.")
    if sized.sure is None:
        lines.append("That is within the noise, as are a few more engines: run it with more --seeds.")
    elif sized.sure is not found:
        lines.append(f"That is within the noise: beyond it {_engines(sized.sure.fleet, machine)} do.")
    each = found.summaries[0].requests // found.engines
    if each < FEW:
        lines.append(
            f"Each engine has {each} requests only: this is a start with caches that fill, not a steady state. A "
            "longer trace gives a better answer."
        )
    return lines


def layout(fleet: Kinds) -> str:
    """``8``; ``2p + 6d`` where prompts are computed apart."""
    if all(kind.role is Role.BOTH for kind in fleet):
        return str(count(fleet))
    return " + ".join(f"{kind.count}{kind.role[0]}" for kind in fleet)


def _engines(fleet: Kinds, machine: Machine) -> str:
    if all(kind.role is Role.BOTH for kind in fleet):
        return f"{count(fleet)} engine{'' if count(fleet) == 1 else 's'} of {machine.name}"
    roles = " and ".join(f"{kind.count} for {'prompts' if kind.role is Role.PREFILL else 'answers'}" for kind in fleet)
    return f"{count(fleet)} engines of {machine.name}, {roles},"


def _answer(fleet: Kinds, machine: Machine) -> str:
    return f"{_engines(fleet, machine)} {'answers' if count(fleet) == 1 else 'answer'}"


def _who(traffic: str) -> str:
    return f"of the requests of class {traffic}" if traffic else "of the requests"


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
