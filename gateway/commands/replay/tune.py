"""``kvgate tune``: searches a configuration's weights and parameters by replay, and measures what they gain.

The result of the search on the training parts of all cells is compared once with the given configuration, on parts that
the search never saw. So the interval of this comparison is unbiased, and a gain that it does not separate from 0 is not
recommended.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from gateway.commands.replay.gains import Keep, Runs, certainty, gain, metric_of, seeds_needed
from gateway.commands.replay.policies import Policy, with_parameters
from gateway.commands.replay.report import COMPARED, change, number
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.search import Found, Search, Values
from gateway.commands.replay.statistics import METRICS, Metric, Summary, difference, mean
from gateway.config.describe import wiring_text
from gateway.errors import ConfigError

HARDLY = 3.0
"""A gain of so many standard deviations is rare: a number of seeds that needs it will hardly ever show a gain."""


def tune(
    cells: Sequence[Cell],
    policy: Policy,
    *,
    objective: str,
    keeps: Sequence[Keep],
    seeds: int,
    budget: int,
    processes: int,
) -> int:
    """Search, and print the gain and, if there is one, what to write into the file. Returns the exit code, 0. Raises
    ConfigError."""
    if seeds < 2:
        raise ConfigError("seeds must be at least 2: one says nothing of the noise")
    if budget < 1:
        raise ConfigError("budget must be at least 1")
    metric = metric_of("--objective", objective)
    notes = Console(stderr=True)
    search = Search(cells, policy, metric, keeps=keeps, seeds=seeds, budget=budget, processes=processes, console=notes)
    for line in warnings(seeds):
        notes.print(f"kvgate: {line}", markup=False, highlight=False, soft_wrap=True)
    found, console = search.search(), Console()
    for line in report(policy, metric, found, [cell.name for cell in cells], keeps):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def warnings(seeds: int) -> list[str]:
    """Notes on this number of seeds, printed before an hour of runs; empty if they are enough."""
    if certainty(seeds) <= HARDLY:
        return []
    enough = next(n for n in range(seeds, 100) if certainty(n) <= HARDLY / 2)
    return [
        f"{seeds} seeds are hardly ever enough: to be distinct from noise, a gain must be {certainty(seeds):.1f} times "
        f"its own deviation from seed to seed; with --seeds {enough} it need be {certainty(enough):.1f} times"
    ]


def report(policy: Policy, metric: Metric, found: Found, cells: Sequence[str], keeps: Sequence[Keep] = ()) -> list[str]:
    """The result, in lines of text. ``cells``: their names."""
    where = "" if len(cells) == 1 else f" in {len(cells)} cells"
    lines = [f"{found.tried} candidates tried for {metric.title}{where}{''.join(f', {keep}' for keep in keeps)}"]
    if found.idle:
        lines.append(f"not searched, since nothing changes with it: {', '.join(knob.name for knob in found.idle)}")
    flat = [name for name, runs in zip(cells, found.given, strict=True) if _flat(metric, runs)]
    if flat:
        lines.append(f"{metric.title} says nothing in {' and '.join(flat)}: it is 0 or all there; choose another load")
    lines.append("on the training part")
    if not found.values:
        return [*lines, "  none was better: keep the configuration as it is"]
    for (name, parameter), value in found.values.items():
        lines.append(f"  {name}.{parameter}: {value:g}")
    lines += _compared(cells, [metric], found.tuned, found.given)
    lines.append("on the held-out part (95 % interval over paired seeds)")
    others = [METRICS[name] for name in COMPARED if name != metric.name]
    lines += _compared(cells, [metric, *others], found.held_tuned, found.held_given)
    if len(cells) > 1:
        lines.append(f"  mean of the cells: {metric.title} {_better(metric, found)}")
    for keep in keeps:
        worst, cell = keep.worst(found.held_tuned, found.held_given)
        if worst > keep.slack:
            unit = keep.metric.unit_of_change
            lines.append(
                f"{keep.metric.title} gets {worst * 100:.1f} {unit} worse{_in(cells, cell)}, {keep.slack * 100:g} "
                f"{unit} were allowed: keep the configuration as it is"
            )
            return lines
    if not found.worth(metric):
        lines.append(f"{metric.title} gained nothing beyond the noise: keep the configuration as it is")
        it, seeds = gain(metric, found.held_tuned, found.held_given), len(found.held_given[0])
        needed = seeds_needed(it, seeds)
        if needed is not None:
            lines.append(f"a gain like this one would be distinct from noise with {needed} seeds, not with {seeds}")
        return lines
    lines.append(f"recommended, in {policy.name}, in place of its plugins and profiles:")
    return lines + snippet(policy, found.values)


def _compared(cells: Sequence[str], metrics: Sequence[Metric], tuned: Runs, given: Runs) -> list[str]:
    """Each cell's metrics."""
    lines = []
    for name, mine, base in zip(cells, tuned, given, strict=True):
        indent = "  "
        if len(cells) > 1:
            lines.append(f"  {name}")
            indent = "    "
        for metric in metrics:
            figures = f"{number(metric, mean(metric, base))} -> {number(metric, mean(metric, mine))} {metric.unit}"
            lines.append(f"{indent}{metric.title}: {figures}, {change(metric, difference(metric, mine, base))}")
    return lines


def _better(metric: Metric, found: Found) -> str:
    it = gain(metric, found.held_tuned, found.held_given)
    return f"better by {it.mid * 100:.1f} {metric.unit_of_change} ({it.low * 100:+.1f}..{it.high * 100:+.1f})"


def _flat(metric: Metric, runs: Sequence[Summary]) -> bool:
    """Whether a share is so near its limit that little can change."""
    return not metric.ratio and {one.values[metric.name] for one in runs} in ({0.0}, {1.0})


def _in(cells: Sequence[str], number: int) -> str:
    return "" if len(cells) == 1 else f" in {cells[number]}"


def snippet(policy: Policy, values: Values) -> list[str]:
    """What to write into plugins.yaml in place of its plugins and profiles, in lines of text. Both are complete, since
    a file's sections replace the defaults."""
    return wiring_text(with_parameters(policy, values).config).splitlines()
