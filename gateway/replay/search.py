"""A coordinate search over a configuration's numbers: one at a time is doubled and halved on the training parts of all
cells, and kept where that helps; when a round helps nowhere, the steps get smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from gateway.config.registry import Registry, discover
from gateway.config.wiring import find, parameters
from gateway.errors import ConfigError
from gateway.replay.cell import Cell
from gateway.replay.compare import Job, run
from gateway.replay.floor import calls
from gateway.replay.gains import Keep, Runs, gain
from gateway.replay.knobs import Key, Knob, Values, knobs
from gateway.replay.policies import Wiring, with_parameters
from gateway.replay.show import Ticker
from gateway.replay.statistics import Metric, Summary

STEPS = (2.0, 1.4, 1.2)
"""Factors, the next where none of the last helped: below a fifth no weight has been seen to matter."""
FROM_ZERO = 0.1
"""What is tried of a number that is 0, which no factor moves."""
HELD_OUT_SEEDS = 1000
"""Added to a seed for what is held out: the search never draws these."""


@dataclass(frozen=True, slots=True)
class Found:
    """``values``: the best on the training parts, where they differ from the given ones. ``given`` and ``tuned``: the
    runs of both there; ``held_given``, ``held_tuned``: on what was held out. ``idle``: the numbers that change nothing
    in these cells, which were not searched."""

    values: Values
    given: Runs
    tuned: Runs
    held_given: Runs
    held_tuned: Runs
    tried: int
    idle: Sequence[Knob] = field(default=())

    def worth(self, metric: Metric, keeps: Sequence[Keep] = ()) -> bool:
        """Whether what was held out shows a gain beyond the noise, and what must be kept is kept there."""
        return (
            bool(self.values)
            and gain(metric, self.held_tuned, self.held_given).low > 0
            and all(keep.kept(self.held_tuned, self.held_given) for keep in keeps)
        )


class Search:
    """Finds better ``values`` of ``wiring`` for a metric, with at most ``budget`` candidates. Raises ConfigError."""

    def __init__(
        self,
        cells: Sequence[Cell],
        wiring: Wiring,
        metric: Metric,
        *,
        keeps: Sequence[Keep] = (),
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
        parts = [split(cell) for cell in cells]
        self._training, self._held = [part[0] for part in parts], [part[1] for part in parts]
        self._wiring, self._metric, self._keeps = wiring, metric, keeps
        self._seeds, self._budget, self._processes = range(1, seeds + 1), budget, processes
        self._console = console
        self._tried = 0
        self._moves: set[Key] = set()
        """Numbers that have been seen to change something."""

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
                        if self._allows(result, given) and gain(self._metric, result, tuned).mid > 0:
                            current, tuned, helped = values, result, True
        seeds = [HELD_OUT_SEEDS + seed for seed in self._seeds]
        held_given, held_tuned = self._run("held out", self._held, [{}, current], seeds)
        return Found(current, given, tuned, held_given, held_tuned, self._tried, idle)

    def _is_idle(self, knob: Knob, candidates: Sequence[Values], tuned: Runs) -> bool:
        """Whether a step of it changes nothing at all in any cell, by one seed of each: such as what weighs fetching
        from a host tier where no machine has one. Then its other seeds need not be run."""
        if knob.key in self._moves:
            return False
        probes = self._run(f"does {knob.name} matter", self._training, candidates, self._seeds[:1])
        if all(
            mine.values == base.values
            for probe in probes
            for [mine], (base, *_) in zip(probe, tuned, strict=True)
        ):  # fmt: skip
            return True
        self._moves.add(knob.key)
        return False

    def _allows(self, ours: Runs, given: Runs) -> bool:
        return all(keep.kept(ours, given) for keep in self._keeps)

    def _candidates(self, knob: Knob, current: Values, factor: float) -> list[Values]:
        """``current`` with the knob a step up and a step down, where its plugin allows that."""
        value = current.get(knob.key, knob.value)
        steps = [value * factor, value / factor] if value else [FROM_ZERO * factor]
        found: list[Values] = []
        for step in steps:
            new = round(step) if knob.whole else float(f"{step:.3g}")
            # What is as it was given stays as it is written: null may be another number in each cell.
            others = {key: other for key, other in current.items() if key != knob.key}
            values: Mapping[Key, float] = others if new == knob.value else {**others, knob.key: new}
            if new != value and self._valid(values):
                found.append(values)
        return found

    def _valid(self, values: Values) -> bool:
        config = with_parameters(self._wiring, values).config
        try:
            for i, plugin in enumerate(config.plugins):
                if any(key[0] == plugin.name for key in values):
                    path = ("plugins", i)
                    parameters(find(self._registry.plugins, plugin, path, config.origin), plugin, path, config.origin)
        except ConfigError:
            return False
        return True

    def _run(self, name: str, cells: Sequence[Cell], candidates: Sequence[Values], seeds: Sequence[int]) -> list[Runs]:
        """Of each candidate the runs."""
        wirings = [with_parameters(self._wiring, values) for values in candidates]
        jobs = [Job(cell, wiring, seed) for wiring in wirings for cell in cells for seed in seeds]
        with Ticker(self._console, f"{name} ({self._tried} tried)", jobs) as ticker:
            found = run(jobs, processes=self._processes, watcher=ticker)
        in_cells: list[Sequence[Summary]] = [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]
        return [in_cells[i : i + len(cells)] for i in range(0, len(in_cells), len(cells))]


def fills(cell: Cell) -> bool:
    """Whether any engine's cache may be full: all that the cell's prompts and answers are is more than the smallest has
    room for."""
    workload, seen, tokens = cell.workload(1), set[int](), 0
    for call in calls(workload):
        tokens += call.output_tokens
        seen.update(call.blocks)
    return tokens + len(seen) * workload.block_size > min(machine.kv_tokens for machine in cell.machines)


def split(cell: Cell) -> tuple[Cell, Cell]:
    """The training part and what is held out. Raises ConfigError if a trace is too short to be split."""
    training, held = cell.source.split()
    return dataclasses.replace(cell, source=training), dataclasses.replace(cell, source=held)
