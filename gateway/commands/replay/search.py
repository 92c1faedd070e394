"""A coordinate search over the numbers of a configuration's scorers. One number at a time is doubled and halved on the
training parts of all cells, and a change is kept if it helps. When a whole round helps nowhere, the steps get smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from rich.console import Console

from gateway.commands.replay.compare import Job, Ticker, run
from gateway.commands.replay.floor import calls
from gateway.commands.replay.gains import Keep, Runs, gain
from gateway.commands.replay.policies import Policy, with_parameters
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.statistics import Metric, Summary
from gateway.config.build import build_scheduler, filled
from gateway.config.registry import Registry, discover
from gateway.core.clock import ManualClock
from gateway.errors import ConfigError
from gateway.framework import Context

ABSOLUTE = "max-score"
"""The type of the picker that considers only which score is highest."""

Key = tuple[str, str]
"""The name of a plugin instance, and one of its parameters or ``weight``."""
Values = Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Knob:
    """One number that the search changes. ``whole``: it is an integer. ``evicts``: it weighs the cost of what a full
    cache evicts."""

    key: Key
    value: float
    whole: bool = False
    evicts: bool = False

    @property
    def name(self) -> str:
        return f"{self.key[0]}.{self.key[1]}"


def knobs(policy: Policy, registry: Registry | None = None) -> list[Knob]:
    """The numbers of the scorers that the model's handler runs: their parameters and, if several are blended, their
    weights (not the first one's: only ratios matter). A parameter with the metadata ``blended`` counts only if its
    scorer is blended with others or its picker is not max-score. One with ``evicts`` counts only in cells whose caches
    can fill. Raises ConfigError."""
    config = policy.config
    registry = registry or discover()
    # The handler knows its profiles, which may come from its parameters' defaults.
    handler = build_scheduler(config, _context, registry).handlers[policy.handler]
    names: Collection[str] = getattr(handler, "profiles", [profile.name for profile in config.profiles])
    asked = [profile for profile in config.profiles if profile.name in names]
    found: dict[Key, Knob] = {}
    for profile in asked:
        for scorer in profile.scorers[1:]:
            key = (scorer.plugin, "weight")
            found.setdefault(key, Knob(key, scorer.weight))
    used = {scorer.plugin for profile in asked for scorer in profile.scorers}
    absolute = {plugin.name for plugin in config.plugins if plugin.type == ABSOLUTE}
    blended = {
        scorer.plugin
        for profile in asked
        for scorer in profile.scorers
        if len(profile.scorers) > 1 or profile.picker not in absolute
    }
    for i, plugin in enumerate(config.plugins):
        if plugin.name not in used:
            continue
        typed = filled(registry.plugins, plugin, ("plugins", i), config.origin)
        for field in dataclasses.fields(typed):
            if field.metadata.get("blended") and plugin.name not in blended:
                continue
            value = getattr(typed, field.name)
            if value is None:
                value = field.metadata.get("usual")  # it is null: derived from the requests
            if isinstance(value, int | float) and not isinstance(value, bool):
                key = (plugin.name, field.name)
                found[key] = Knob(key, value, isinstance(value, int), field.metadata.get("evicts", False))
    return list(found.values())


def _context(name: str) -> Context:
    return Context(name=name, clock=ManualClock(), random=Random(0))


STEPS = (2.0, 1.4, 1.2)
"""The factors of the steps; the next is used when the last helps nowhere. A change of a weight by less than a fifth has
not been seen to matter."""
FROM_ZERO = 0.1
"""The value to try for a number that is 0, which no factor changes."""
HELD_OUT_SEEDS = 1000
"""Added to a seed for the held-out part, so that the search never uses these seeds."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search. ``values``: the best numbers on the training parts, if they differ from the given ones.
    ``given``, ``tuned``: the runs of both there; ``held_given``, ``held_tuned``: on the held-out parts. ``idle``:
    numbers that change nothing in these cells and were not searched."""

    values: Values
    given: Runs
    tuned: Runs
    held_given: Runs
    held_tuned: Runs
    tried: int
    idle: Sequence[Knob] = ()

    def worth(self, metric: Metric) -> bool:
        """Whether the held-out parts show a gain beyond the noise."""
        return bool(self.values) and gain(metric, self.held_tuned, self.held_given).low > 0


class Search:
    """Searches better ``values`` of ``policy`` for a metric, with at most ``budget`` candidates. Raises ConfigError."""

    def __init__(
        self,
        cells: Sequence[Cell],
        policy: Policy,
        metric: Metric,
        *,
        keeps: Sequence[Keep] = (),
        seeds: int,
        budget: int,
        processes: int,
        console: Console,
    ) -> None:
        self._registry = discover()
        self._knobs = knobs(policy, self._registry)
        if not self._knobs:
            raise ConfigError(f"{policy.name}: its scorers have no number that could be searched")
        parts = [split(cell) for cell in cells]
        self._training, self._held = [part[0] for part in parts], [part[1] for part in parts]
        self._policy, self._metric, self._keeps = policy, metric, keeps
        self._seeds, self._budget, self._processes = range(1, seeds + 1), budget, processes
        self._console = console
        self._tried = 0
        self._moves: set[Key] = set()
        """Numbers that have changed something."""

    def search(self) -> Found:
        current: Values = {}
        [given] = self._run("given", self._training, [current], self._seeds)
        full = any(map(fills, self._training))
        idle = [knob for knob in self._knobs if knob.evicts and not full]
        tuned, live = given, [knob for knob in self._knobs if knob not in idle]
        for factor in STEPS:
            helped = True
            while helped and live and self._tried < self._budget:
                helped = False
                for knob in list(live):
                    candidates = self._candidates(knob, current, factor)
                    if not candidates or self._tried >= self._budget:
                        continue
                    if self._is_idle(knob, candidates, tuned):
                        live.remove(knob)
                        idle.append(knob)
                        continue
                    results = self._run(knob.name, self._training, candidates, self._seeds)
                    self._tried += len(candidates)
                    for values, result in zip(candidates, results, strict=True):
                        allowed = all(keep.kept(result, given) for keep in self._keeps)
                        if allowed and gain(self._metric, result, tuned).mid > 0:
                            current, tuned, helped = values, result, True
        seeds = [HELD_OUT_SEEDS + seed for seed in self._seeds]
        held_given, held_tuned = self._run("held out", self._held, [{}, current], seeds)
        return Found(current, given, tuned, held_given, held_tuned, self._tried, idle)

    def _is_idle(self, knob: Knob, candidates: Sequence[Values], tuned: Runs) -> bool:
        """Whether a step of the number changes nothing in any cell, by one seed of each cell; the other seeds then need
        not run. An example is the cost of fetching from a host tier that no machine has."""
        if knob.key in self._moves:
            return False
        probes = self._run(f"does {knob.name} matter", self._training, candidates, self._seeds[:1])
        pairs = [pair for probe in probes for pair in zip(probe, tuned, strict=True)]
        if all(mine.values == base.values for [mine], (base, *_) in pairs):
            return True
        self._moves.add(knob.key)
        return False

    def _candidates(self, knob: Knob, current: Values, factor: float) -> list[Values]:
        """``current`` with the number one step up and one step down, if its plugin allows that."""
        value = current.get(knob.key, knob.value)
        steps = [value * factor, value / factor] if value else [FROM_ZERO * factor]
        found: list[Values] = []
        for step in steps:
            new = round(step) if knob.whole else float(f"{step:.3g}")
            # A number that has its given value stays as it was written: null may be another number in each cell.
            others = {key: other for key, other in current.items() if key != knob.key}
            values: Mapping[Key, float] = others if new == knob.value else {**others, knob.key: new}
            if new != value and self._valid(values):
                found.append(values)
        return found

    def _valid(self, values: Values) -> bool:
        config = with_parameters(self._policy, values).config
        try:
            for i, plugin in enumerate(config.plugins):
                if any(key[0] == plugin.name for key in values):
                    filled(self._registry.plugins, plugin, ("plugins", i), config.origin)
        except ConfigError:
            return False
        return True

    def _run(self, name: str, cells: Sequence[Cell], candidates: Sequence[Values], seeds: Sequence[int]) -> list[Runs]:
        """The runs of each candidate."""
        policies = [with_parameters(self._policy, values) for values in candidates]
        jobs = [Job(cell, policy, seed) for policy in policies for cell in cells for seed in seeds]
        ticker = Ticker(self._console, f"{name} ({self._tried} tried)", len(jobs))
        found = run(jobs, ticker, processes=self._processes)
        in_cells: list[Sequence[Summary]] = [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]
        return [in_cells[i : i + len(cells)] for i in range(0, len(in_cells), len(cells))]


def fills(cell: Cell) -> bool:
    """Whether an engine's cache may fill: all prompts and answers of the cell together are larger than the smallest
    cache."""
    workload, seen, tokens = cell.workload(1), set[int](), 0
    for call in calls(workload):
        tokens += call.output_tokens
        seen.update(call.blocks)
    return tokens + len(seen) * workload.block_size > min(machine.kv_tokens for machine in cell.machines)


def split(cell: Cell) -> tuple[Cell, Cell]:
    """The training part and the held-out part. Raises ConfigError if a trace is too short to be split."""
    training, held = cell.source.split()
    return dataclasses.replace(cell, source=training), dataclasses.replace(cell, source=held)
