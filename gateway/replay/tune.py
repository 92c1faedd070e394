"""``kvgate tune``: searches a configuration's weights and parameters by replay, and says what they are worth.

A coordinate search: one number at a time is doubled and halved on the training part, and kept where that helps; when a
round helps nowhere, the steps get smaller. What it found is then compared with the given configuration on a part that
it never saw, once: the interval of that comparison is honest, and what it does not tell from nothing is not
recommended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from rich.console import Console

from gateway.config.describe import wiring_text
from gateway.config.registry import Registry, discover
from gateway.config.wiring import find, parameters, wire
from gateway.errors import ConfigError
from gateway.framework import NULL_OBSERVER, Context, ManualClock
from gateway.replay.cell import Cell
from gateway.replay.compare import Job, run
from gateway.replay.policies import Wiring, with_parameters
from gateway.replay.report import COMPARED, change, number
from gateway.replay.show import Ticker
from gateway.replay.statistics import METRICS, Metric, Summary, difference, mean

STEPS = (2.0, 1.4, 1.2)
"""Factors, the next where none of the last helped: below a fifth no weight has been seen to matter."""
FROM_ZERO = 0.1
"""What is tried of a number that is 0, which no factor moves."""
HELD_OUT_SEEDS = 1000
"""Added to a seed for what is held out: the search never draws these."""

Key = tuple[str, str]
"""A plugin's instance and one of its parameters, or ``weight``."""
Values = Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Knob:
    """One number that is searched. ``whole``: it is an integer."""

    key: Key
    value: float
    whole: bool = False

    @property
    def name(self) -> str:
        return f"{self.key[0]}.{self.key[1]}"


@dataclass(frozen=True, slots=True)
class Found:
    """``values``: the best on the training part, where they differ from the given ones. ``trained``, ``given`` and
    ``tuned``: the runs of both on the training part; ``held_given``, ``held_tuned``: on what was held out."""

    values: Values
    given: Sequence[Summary]
    tuned: Sequence[Summary]
    held_given: Sequence[Summary]
    held_tuned: Sequence[Summary]
    tried: int

    def worth(self, metric: Metric) -> bool:
        """Whether what was held out shows a gain beyond the noise."""
        if not self.values:
            return False
        it = difference(metric, self.held_tuned, self.held_given)
        return it.high < 0 if metric.less else it.low > 0


def knobs(wiring: Wiring, registry: Registry | None = None) -> list[Knob]:
    """The numbers of the scorers that the model's handler runs: their parameters, and their weights where several are
    blended (of the first none: only ratios matter). Raises ConfigError."""
    config = wiring.config
    registry = registry or discover()
    types = registry.plugins
    # Asked of the handler itself: what it runs may be its parameters' defaults.
    handler = wire(config, _context, registry).handlers[wiring.handler]
    names: Collection[str] = getattr(handler, "profiles", [profile.name for profile in config.profiles])
    asked = [profile for profile in config.profiles if profile.name in names]
    found: dict[Key, Knob] = {}
    for profile in asked:
        for scorer in profile.scorers[1:]:
            key = (scorer.plugin, "weight")
            found.setdefault(key, Knob(key, scorer.weight))
    used = {scorer.plugin for profile in asked for scorer in profile.scorers}
    for i, plugin in enumerate(config.plugins):
        if plugin.name not in used:
            continue
        path = ("plugins", i)
        typed = parameters(find(types, plugin, path, config.origin), plugin, path, config.origin)
        for field in dataclasses.fields(typed):
            value = getattr(typed, field.name)
            if value is None:
                value = field.metadata.get("usual")  # of a parameter that follows from the requests, where it is null
            if isinstance(value, int | float) and not isinstance(value, bool):
                key = (plugin.name, field.name)
                found[key] = Knob(key, value, whole=isinstance(value, int))
    return list(found.values())


def _context(name: str) -> Context:
    return Context(name=name, clock=ManualClock(), random=Random(0), observer=NULL_OBSERVER)


class Search:
    """Finds better ``values`` of ``found`` for a metric, with at most ``budget`` candidates."""

    def __init__(
        self,
        cell: Cell,
        wiring: Wiring,
        metric: Metric,
        *,
        seeds: int,
        budget: int,
        processes: int,
        console: Console,
        registry: Registry | None = None,
    ) -> None:
        self._registry = registry or discover()
        self._knobs = knobs(wiring, self._registry)
        if not self._knobs:
            raise ConfigError(f"{wiring.name}: its scorers have no number that could be searched")
        self._training, self._held = split(cell)
        self._wiring, self._metric = wiring, metric
        self._seeds, self._budget, self._processes = seeds, budget, processes
        self._console = console
        self._tried = 0

    def search(self) -> Found:
        current = {knob.key: knob.value for knob in self._knobs}
        [given] = self._run("given", self._training, [current], 0)
        tuned, live = given, list(self._knobs)
        for factor in STEPS:
            helped = True
            while helped and live and self._tried < self._budget:
                helped = False
                for knob in list(live):
                    candidates = self._candidates(knob, current, factor)
                    if not candidates or self._tried >= self._budget:
                        continue
                    results = self._run(knob.name, self._training, candidates, 0)
                    self._tried += len(candidates)
                    if all(_same(result, tuned) for result in results):
                        live.remove(knob)  # such as a scale where there is nothing to blend with
                        continue
                    for values, result in zip(candidates, results, strict=True):
                        if self._better(result, tuned):
                            current, tuned, helped = values, result, True
        values = {knob.key: current[knob.key] for knob in self._knobs if current[knob.key] != knob.value}
        held_given, held_tuned = self._run("held out", self._held, [{}, values], HELD_OUT_SEEDS)
        return Found(values, given, tuned, held_given, held_tuned, self._tried)

    def _candidates(self, knob: Knob, current: Mapping[Key, float], factor: float) -> list[dict[Key, float]]:
        """The knob a step up and a step down, where its plugin allows that."""
        value = current[knob.key]
        steps = [value * factor, value / factor] if value else [FROM_ZERO * factor]
        found = []
        for step in steps:
            new = round(step) if knob.whole else float(f"{step:.3g}")
            values = {**current, knob.key: new}
            if new != value and self._allowed(values):
                found.append(values)
        return found

    def _allowed(self, values: Values) -> bool:
        config = with_parameters(self._wiring, values).config
        try:
            for i, plugin in enumerate(config.plugins):
                if any(key[0] == plugin.name for key in values):
                    path = ("plugins", i)
                    parameters(find(self._registry.plugins, plugin, path, config.origin), plugin, path, config.origin)
        except ConfigError:
            return False
        return True

    def _run(self, name: str, cell: Cell, candidates: Sequence[Values], offset: int) -> list[Sequence[Summary]]:
        """Of each candidate the runs of all seeds."""
        seeds = range(offset + 1, offset + self._seeds + 1)
        jobs = [Job(cell, with_parameters(self._wiring, values), seed) for values in candidates for seed in seeds]
        with Ticker(self._console, f"{name} ({self._tried} tried)", jobs) as ticker:
            found = run(jobs, processes=self._processes, watcher=ticker)
        return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]

    def _better(self, ours: Sequence[Summary], theirs: Sequence[Summary]) -> bool:
        gain = mean(self._metric, ours) - mean(self._metric, theirs)
        return gain < 0 if self._metric.less else gain > 0


def split(cell: Cell) -> tuple[Cell, Cell]:
    """The training part and what is held out. Raises ConfigError if a trace is too short to be split."""
    training, held = cell.source.split()
    return dataclasses.replace(cell, source=training), dataclasses.replace(cell, source=held)


def tune(
    cell: Cell,
    wiring: Wiring,
    *,
    objective: str = "goodput",
    seeds: int = 3,
    budget: int = 40,
    processes: int = 1,
    console: Console | None = None,
) -> int:
    """Search, print what it is worth and, where it is worth something, what to write into the file. The exit code: 0.
    Raises ConfigError."""
    if seeds < 2:
        raise ConfigError("seeds must be at least 2: one says nothing of the noise")
    if budget < 1:
        raise ConfigError("budget must be at least 1")
    if objective not in METRICS:
        raise ConfigError(f"there is no objective {objective!r}; one of {', '.join(METRICS)}")
    console = console or Console()
    metric = METRICS[objective]
    search = Search(cell, wiring, metric, seeds=seeds, budget=budget, processes=processes, console=Console(stderr=True))
    found = search.search()
    for line in report(wiring, metric, found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def report(wiring: Wiring, metric: Metric, found: Found) -> list[str]:
    """What was found, in lines."""
    lines = [f"{found.tried} candidates tried for {metric.title}; on the training part"]
    if not found.values:
        return [*lines, "  none was better: keep the configuration as it is"]
    for (name, parameter), value in found.values.items():
        lines.append(f"  {name}.{parameter}: {value:g}")
    lines.append(
        f"  {metric.title}: {number(metric, mean(metric, found.given))} -> {number(metric, mean(metric, found.tuned))} "
        f"{metric.unit}, {change(metric, difference(metric, found.tuned, found.given))}"
    )
    lines.append("on the held-out part (95 % interval over paired seeds)")
    for name in dict.fromkeys((metric.name, *COMPARED)):
        it = METRICS[name]
        lines.append(
            f"  {it.title}: {number(it, mean(it, found.held_given))} -> {number(it, mean(it, found.held_tuned))} "
            f"{it.unit}, {change(it, difference(it, found.held_tuned, found.held_given))}"
        )
    if not found.worth(metric):
        return [*lines, f"{metric.title} gained nothing beyond the noise: keep the configuration as it is"]
    lines.append(f"recommended, in {wiring.name}, in place of its plugins and profiles:")
    return lines + snippet(wiring, found.values)


def snippet(wiring: Wiring, values: Values) -> list[str]:
    """What to write into plugins.yaml in place of its plugins and profiles, in lines. All of both, since a file's
    sections replace the defaults as a whole."""
    return wiring_text(with_parameters(wiring, values).config).splitlines()


def _same(ours: Sequence[Summary], theirs: Sequence[Summary]) -> bool:
    """Whether the runs did the very same."""
    return all(mine.values == other.values for mine, other in zip(ours, theirs, strict=True))
