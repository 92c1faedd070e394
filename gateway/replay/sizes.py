"""The search for the smallest fleet that answers enough: some sizes are replayed, by several seeds each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from gateway.replay.kinds import Kinds, count
from gateway.replay.statistics import METRICS, Interval, Summary, interval, mean

MOST_ROUNDS = 3
"""Of seeds, for a size of which one round does not tell whether it does."""

LITTLE = 0.002
"""Share of the requests: where twice the engines answer no more than that in time, more are no help."""

BEYOND = 3
"""Engines above the smallest size that does on average, among which one is looked for that does beyond the noise."""


class Verdict(Enum):
    """What the seeds of one size say: their interval is above what is asked, below it, or has it inside."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Trial:
    """One fleet. ``shares``: of the requests that were answered within their objectives, by seed; of classes the least
    above what is asked. ``summaries``: by seed."""

    fleet: Kinds
    shares: Sequence[float]
    asked: float
    summaries: Sequence[Summary]

    @property
    def engines(self) -> int:
        return count(self.fleet)

    @property
    def share(self) -> Interval:
        return interval(self.shares)

    @property
    def does(self) -> bool:
        """On average."""
        return self.share.mid >= self.asked

    @property
    def verdict(self) -> Verdict:
        it = self.share
        if len(self.shares) < 2:
            return Verdict.OPEN
        return Verdict.YES if it.low >= self.asked else Verdict.NO if it.high < self.asked else Verdict.OPEN


Replay: TypeAlias = Callable[[Kinds, range], Sequence[Summary]]
"""Runs a fleet with these seeds."""
Share: TypeAlias = Callable[[Summary], float]


class Judge:
    """Tries fleets, each once: with ``seeds`` seeds, and up to ``MOST_ROUNDS`` times as many while they do not tell."""

    def __init__(self, replay: Replay, share: Share, *, asked: float, seeds: int) -> None:
        self.trials: dict[Kinds, Trial] = {}
        self._replay, self._share, self._asked, self._seeds = replay, share, asked, seeds

    def trial(self, fleet: Kinds) -> Trial:
        if fleet not in self.trials:
            summaries: list[Summary] = []
            for number in range(MOST_ROUNDS):
                summaries += self._replay(fleet, range(number * self._seeds + 1, (number + 1) * self._seeds + 1))
                trial = Trial(fleet, list(map(self._share, summaries)), self._asked, summaries)
                if trial.verdict is not Verdict.OPEN:
                    break
            self.trials[fleet] = trial
        return self.trials[fleet]


@dataclass(frozen=True, slots=True)
class Sized:
    """``trials``: by size, of each the best of its layouts. ``smallest``: does on average, and one engine fewer does
    not; None: none of those that were tried does. ``sure``: the smallest that does beyond the noise, if one was found.
    ``helpless``: more engines were no help."""

    trials: Mapping[int, Trial]
    smallest: Trial | None
    sure: Trial | None
    helpless: bool = False


def smallest(best: Callable[[int], Trial], *, first: int, least: int, most: int) -> Sized:
    """Of the sizes ``least`` to ``most``. ``best``: tries a size. Doubles, or halves, from ``first`` on until the
    verdict turns, and bisects between."""
    trials: dict[int, Trial] = {}

    def does(engines: int) -> bool:
        trials[engines] = best(engines)
        return trials[engines].does

    size = min(max(first, least), most)
    if does(size):
        above = size
        below = least - 1
        while above > least:
            size = max(least, above // 2)
            if not does(size):
                below = size
                break
            above = size
    else:
        while True:
            below, size = size, min(2 * size, most)
            if size == below:
                return Sized(trials, None, None)
            if does(size):
                break
            if size == 2 * below and trials[size].share.mid - trials[below].share.mid <= LITTLE and _any(trials[size]):
                return Sized(trials, None, None, helpless=True)
        above = size
    while above - below > 1:
        size = (above + below) // 2
        if does(size):
            above = size
        else:
            below = size
    sure = None
    for size in range(above, min(above + BEYOND, most) + 1):
        if size not in trials:
            does(size)
        if trials[size].verdict is Verdict.YES:
            sure = trials[size]
            break
    return Sized(trials, trials[above], sure)


def best_of(trial: Callable[[int], Trial], *, first: int, least: int, most: int) -> Trial:
    """The best of the layouts ``least`` to ``most`` of one size, from ``first`` uphill: of two that answer as many in
    time the one with the shorter waits, so that it goes on where a fleet is so small that it answers none."""

    def height(layout: int) -> tuple[float, float]:
        found = trial(layout)
        return found.share.mid, -mean(METRICS["ttft_mean"], found.summaries)

    at = min(max(first, least), most)
    for step in (1, -1):
        moved = False
        while least <= at + step <= most and height(at + step) > height(at):
            at, moved = at + step, True
        if moved:
            break
    return trial(at)


def _any(trial: Trial) -> bool:
    """Whether some of the requests are answered in time: a fleet that is overloaded may answer none with twice the
    engines, and all with four times as many."""
    return trial.share.mid > LITTLE
