"""What one configuration is worth against another in several cells at once, and what must not get worse."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from gateway.config.origin import nearest
from gateway.errors import ConfigError
from gateway.replay.pairs import number
from gateway.replay.statistics import METRICS, Interval, Metric, Summary, difference, interval, student

Runs: TypeAlias = Sequence[Sequence[Summary]]
"""Of one configuration: the runs of all seeds in each cell, cells and seeds in the same order for all."""

USUAL_SLACK = 0.02
"""Of what must not get worse: as much as a p99 of some thousand requests differs between seeds."""

MOST_SEEDS = 1000
"""That are counted up to: more are no advice."""


def gain(metric: Metric, ours: Runs, theirs: Runs) -> Interval:
    """How much better ``ours`` are, above 0 where they are: of each seed the mean over the cells, and its interval over
    the seeds. Shares as differences, others as ratios - 1 (geometric means)."""
    pairs = [
        [(one.values[metric.name], other.values[metric.name]) for one, other in zip(mine, others, strict=True)]
        for mine, others in zip(ours, theirs, strict=True)
    ]
    sign = -1.0 if metric.less else 1.0
    if not metric.ratio:
        return interval([fmean(sign * (mine - other) for mine, other in seed) for seed in zip(*pairs, strict=True)])
    if any(mine <= 0 or other <= 0 for cell in pairs for mine, other in cell):
        return Interval(math.nan, -math.inf, math.inf)
    it = interval([fmean(sign * math.log(mine / other) for mine, other in seed) for seed in zip(*pairs, strict=True)])
    return Interval(*(math.expm1(min(bound, 700.0)) for bound in (it.mid, it.low, it.high)))


def certainty(seeds: int) -> float:
    """How many times its standard deviation from seed to seed a gain must be for its interval to leave out nothing."""
    return student(seeds - 1) / math.sqrt(seeds) if seeds > 1 else math.inf


def seeds_needed(found: Interval, seeds: int) -> int | None:
    """So many would tell a gain like this one from nothing; None: as good as never."""
    if not found.mid > 0 or not found.low > -math.inf:
        return None
    deviation = (found.mid - found.low) / certainty(seeds)
    return next((n for n in range(2, MOST_SEEDS) if certainty(n) * deviation < found.mid), None)


@dataclass(frozen=True, slots=True)
class Keep:
    """``metric`` must not get worse by more than ``slack`` in any cell: a share of what it is, of shares in points
    (0.02: 2 %, 2 points)."""

    metric: Metric
    slack: float = USUAL_SLACK

    def __str__(self) -> str:
        return f"{self.metric.title} at most {self.slack * 100:g} {'%' if self.metric.ratio else 'pp'} worse"

    def worst(self, ours: Runs, given: Runs) -> tuple[float, int]:
        """By how much ``ours`` are worse in the cell where they are so most, and its number."""
        sign = 1.0 if self.metric.less else -1.0
        # Of a figure that is 0 there is no ratio, and nothing to compare.
        found = [sign * difference(self.metric, mine, base).mid for mine, base in zip(ours, given, strict=True)]
        return max((0.0 if math.isnan(each) else each, number) for number, each in enumerate(found))

    def kept(self, ours: Runs, given: Runs) -> bool:
        return self.worst(ours, given)[0] <= self.slack


def keep(text: str) -> Keep:
    """Of a figure's name, in any order of its words, and how much worse it may be: ``p99 TTFT``, ``ttft_p99=5%``.

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
    """The figure of that name. Raises ConfigError, which names ``option``."""
    for metric in METRICS.values():
        if _words(text) in (_words(metric.name), _words(metric.title)):
            return metric
    near = nearest(text, METRICS)
    raise ConfigError(f"{option}: there is no figure {text!r}{near}; one of {', '.join(METRICS)}")


def _words(text: str) -> list[str]:
    return sorted(text.lower().replace("_", " ").split())
