"""What the samples come to: medians, ratios of one run, and whether the targets are met. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.data_path.measure import Sample
from benchmarks.data_path.plan import CHEAPEST, COLUMNS, TARGETS, Column, Target
from benchmarks.data_path.rows import DIRECT, KVGATE

BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}


@dataclass(frozen=True)
class Verdict:
    """``value``: a median of the rounds' ratios, or of milliseconds. ``against``: the row it was divided by."""

    target: Target
    row: str
    against: str | None
    value: float

    @property
    def met(self) -> bool:
        return self.value <= self.target.most


class Results:
    """Samples, by row, column and round. What is compared is CPU in microseconds for each answer, or in the columns of
    latency the milliseconds that a row adds to the engine's own."""

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
        ours, theirs = self.values(row, column), self.values(other, column)
        ratios = [ours[number] / theirs[number] for number in ours if theirs.get(number, 0) > 0]
        return statistics.median(ratios) if ratios else None

    def cheapest(self, column: str, among: Sequence[str]) -> str | None:
        """The row of ``among`` with the least of what counts in ``column``."""
        found = {row: value for row in among if (value := self.value(row, column)) is not None}
        return min(found, key=lambda row: found[row]) if found else None


def verdicts(results: Results, peers: Sequence[str], trees: Sequence[str]) -> list[Verdict]:
    """Of each target that the rows and columns of this run can tell of, for each gateway. ``peers``: cache-aware."""
    found = []
    for tree in trees:
        for target in TARGETS:
            row = tree + target.row.removeprefix(KVGATE)
            if target.against is None:
                against, value = None, results.value(row, target.column)
                if value is not None and not BY_NAME[target.column].latency:
                    value /= 1000
            else:
                against = results.cheapest(target.column, peers) if target.against == CHEAPEST else target.against
                value = None if against is None else results.ratio(row, against, target.column)
            if value is not None:
                found.append(Verdict(target, row, against, value))
    return found
