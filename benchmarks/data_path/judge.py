"""What the samples come to: medians, ratios of one run, and whether the targets are met. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.data_path.builds import COMPILED, KVGATE
from benchmarks.data_path.measure import Sample
from benchmarks.data_path.plan import COLUMNS, TARGETS, Column, Target
from benchmarks.data_path.rows import AGAIN, DIRECT

BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}

BEYOND = 2.0
"""Times the noise: chance alone exceeds it once in twenty runs."""


@dataclass(frozen=True)
class Verdict:
    """``kind``: of the row's build. ``against``: the row it was divided by. ``value``: a median of the rounds' ratios,
    or of the values themselves. ``noise``: what equal rows of the run differ by, as a share; None: there were none."""

    target: Target
    row: str
    kind: str
    against: str | None
    value: float
    noise: float | None

    @property
    def most(self) -> float:
        return self.target.most(self.kind)

    @property
    def met(self) -> bool:
        return self.value <= self.most

    @property
    def missed(self) -> bool:
        """By more than the noise. Without equal rows nobody can tell."""
        return self.noise is not None and self.value > self.most * (1 + BEYOND * self.noise)


class Results:
    """Samples, by row, column and round. What is compared is CPU in microseconds for each answer; in the columns of
    latency the milliseconds that a row adds to the engine's own; unasked, hundredths of a core."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self._by: dict[tuple[str, str], dict[int, Sample]] = {}
        for sample in samples:
            self._by.setdefault((sample.row, sample.column), {})[sample.round] = sample
        self.rows = list(dict.fromkeys(sample.row for sample in samples))
        self.columns = [BY_NAME[name] for name in BY_NAME if any(sample.column == name for sample in samples)]

    def values(self, row: str, column: str) -> dict[int, float]:
        """By round."""
        found = self._by.get((row, column), {})
        if not BY_NAME[column].latency:
            return {number: sample.cpu for number, sample in found.items()}
        if row == DIRECT:
            return {number: sample.p50 for number, sample in found.items()}
        direct = self._by.get((DIRECT, column), {})
        return {number: sample.p50 - direct[number].p50 for number, sample in found.items() if number in direct}

    def value(self, row: str, column: str) -> float | None:
        """Its median."""
        values = self.values(row, column)
        return statistics.median(values.values()) if values else None

    def figure(self, row: str, column: str, name: str) -> float | None:
        """The median of another field of the samples."""
        found = self._by.get((row, column), {})
        return statistics.median(getattr(sample, name) for sample in found.values()) if found else None

    def ratio(self, row: str, other: str, column: str) -> float | None:
        """The median of the ratios of one round each: what the machine does in a round, it does to both."""
        ratios = self._ratios(row, other, column)
        return statistics.median(ratios) if ratios else None

    def _ratios(self, row: str, other: str, column: str) -> list[float]:
        ours, theirs = self.values(row, column), self.values(other, column)
        return [ours[number] / theirs[number] for number in ours if theirs.get(number, 0) > 0]

    def noise(self, column: str) -> float | None:
        """What the two equal rows differ by in a round, as a share: the root mean square over the rounds of all columns
        of the same unit, since those of one column are few. None where they were not measured."""
        unit = BY_NAME[column].unit
        alike = [each.name for each in self.columns if each.unit == unit]
        return root_mean_square(ratio for name in alike for ratio in self._ratios(AGAIN, KVGATE, name))

    def cheapest(self, column: str, among: Sequence[str]) -> str | None:
        """The row of ``among`` with the least of what counts in ``column``."""
        found = {row: value for row in among if (value := self.value(row, column)) is not None}
        return min(found, key=lambda row: found[row]) if found else None


def root_mean_square(ratios: Iterable[float]) -> float | None:
    """Of how far ratios of equals are from 1, either way: 0.5 is as far as 2. None where there are none above 0."""
    logarithms = [math.log(ratio) for ratio in ratios if ratio > 0]
    return math.expm1(math.hypot(*logarithms) / math.sqrt(len(logarithms))) if logarithms else None


def verdicts(results: Results, peers: Sequence[str], kinds: Mapping[str, str]) -> list[Verdict]:
    """Of each target that the rows and columns of this run can tell of, for each gateway. ``peers``: cache-aware.
    ``kinds``: of the gateways' builds, by their rows."""
    found = []
    for row, kind in kinds.items():
        for target in TARGETS:
            column = BY_NAME[target.column]
            if target.to_peer:
                against = results.cheapest(target.column, peers)
                value = None if against is None else results.ratio(row, against, target.column)
            else:
                against, value = None, results.value(row, target.column)
                if value is not None and column.unit == "µs":
                    value /= 1000
            if value is not None:
                found.append(Verdict(target, row, kind, against, value, results.noise(target.column)))
    return found


def lost(verdicts: Sequence[Verdict], met: frozenset[tuple[str, str]]) -> list[Verdict]:
    """Those of the two gateways of the page that miss a target, by more than the noise, which they ``met`` on the page:
    a target's name, and the kind of the build."""
    return [
        verdict
        for verdict in verdicts
        if verdict.row in (KVGATE, COMPILED) and verdict.missed and (verdict.target.name, verdict.kind) in met
    ]
