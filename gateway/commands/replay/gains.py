"""Compares two configurations over several cells: how much one gains, and whether a metric gets worse."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.commands.replay.pairs import number
from gateway.commands.replay.statistics import METRICS, Interval, Metric, Summary, compared, difference, student
from gateway.config.origin import nearest
from gateway.errors import ConfigError

Runs: TypeAlias = Sequence[Sequence[Summary]]
"""The runs of one configuration: all seeds in each cell, with cells and seeds in the same order for all
configurations."""

USUAL_SLACK = 0.02
"""The slack of a metric that must not get worse: as much as a p99 of some thousand requests differs between seeds."""

MOST_SEEDS = 1000
"""The most seeds that are recommended; more are no useful advice."""


def gain(metric: Metric, ours: Runs, theirs: Runs) -> Interval:
    """How much better ``ours`` are (above 0: better): for each seed the mean over the cells, and the interval of these
    over the seeds. Shares are compared as differences, other metrics as ratios - 1 (geometric means)."""
    cells = [
        [(one.values[metric.name], other.values[metric.name]) for one, other in zip(mine, others, strict=True)]
        for mine, others in zip(ours, theirs, strict=True)
    ]
    return compared(metric, list(zip(*cells, strict=True)), sign=-1.0 if metric.less else 1.0)


def certainty(seeds: int) -> float:
    """How many standard deviations over the seeds a gain must have for its interval to exclude 0."""
    return student(seeds - 1) / math.sqrt(seeds) if seeds > 1 else math.inf


def seeds_needed(found: Interval, seeds: int) -> int | None:
    """The number of seeds that would distinguish a gain like this one from 0; None: practically no number would."""
    if not found.mid > 0 or not found.low > -math.inf:
        return None
    deviation = (found.mid - found.low) / certainty(seeds)
    return next((n for n in range(2, MOST_SEEDS) if certainty(n) * deviation < found.mid), None)


@dataclass(frozen=True, slots=True)
class Keep:
    """The condition that ``metric`` gets worse by at most ``slack`` in every cell: relative to its value, or for shares
    in points (0.02: 2 %, 2 points)."""

    metric: Metric
    slack: float = USUAL_SLACK

    def __str__(self) -> str:
        return f"{self.metric.title} at most {self.slack * 100:g} {self.metric.unit_of_change} worse"

    def worst(self, ours: Runs, given: Runs) -> tuple[float, int]:
        """How much worse ``ours`` are in the worst cell, and that cell's number."""
        sign = 1.0 if self.metric.less else -1.0
        # A metric that is 0 has no ratio, and nothing to compare.
        found = [sign * difference(self.metric, mine, base).mid for mine, base in zip(ours, given, strict=True)]
        return max((0.0 if math.isnan(each) else each, number) for number, each in enumerate(found))

    def kept(self, ours: Runs, given: Runs) -> bool:
        return self.worst(ours, given)[0] <= self.slack


def keep(text: str) -> Keep:
    """Read a metric's name, its words in any order, and how much worse it may get: ``p99 TTFT``, ``ttft_p99=5%``.

    Raises ConfigError.
    """
    name, equals, slack = (part.strip() for part in text.partition("="))
    metric = metric_of("--keep", name)
    if not equals:
        return Keep(metric)
    percent = number("--keep", re.sub(r"\s*(%|pp)$", "", slack))
    if not 0 <= percent <= 100:
        raise ConfigError(f"--keep: {text!r}: it may be 0 to 100 % worse")
    return Keep(metric, percent / 100)


def metric_of(option: str, text: str) -> Metric:
    """The metric of that name. Raises ConfigError, which names ``option``."""
    for metric in METRICS.values():
        if _words(text) in (_words(metric.name), _words(metric.title)):
            return metric
    near = nearest(text, METRICS)
    raise ConfigError(f"{option}: there is no figure {text!r}{near}; one of {', '.join(METRICS)}")


def _words(text: str) -> list[str]:
    return sorted(text.lower().replace("_", " ").split())
