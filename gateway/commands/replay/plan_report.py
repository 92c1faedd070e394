"""The result of a plan: in words, and as a table of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from gateway.commands.replay.fleet import Kinds, count
from gateway.commands.replay.floor import Floor
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
