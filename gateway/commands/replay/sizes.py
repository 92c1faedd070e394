"""Searches the smallest fleet that meets the objectives: it replays sizes, each with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TypeAlias

from gateway.commands.replay.fleet import Kinds, count
from gateway.commands.replay.statistics import METRICS, Interval, Summary, interval, mean

MOST_ROUNDS = 3
"""Rounds of seeds at most, for a size that one round does not decide."""

LITTLE = 0.002
"""Share of the requests: if twice the engines answer no more than this in addition, more engines do not help."""

BEYOND = 3
"""Engines above the smallest size that is enough on average, among which a size is searched that is enough beyond the
noise."""


class Verdict(Enum):
    """The verdict of the seeds on one size: their interval is above the requested share, below it, or contains it."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one fleet. ``shares``: by seed, of the requests that met their objectives; for classes the smallest
    margin above the requested share. ``summaries``: by seed."""

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
        """The mean of the shares."""
        return self.share.mid >= self.asked

    @property
    def verdict(self) -> Verdict:
        it = self.share
        if len(self.shares) < 2:
            return Verdict.OPEN
        return Verdict.YES if it.low >= self.asked else Verdict.NO if it.high < self.asked else Verdict.OPEN


Replay: TypeAlias = Callable[[Kinds, range], Sequence[Summary]]
"""Replays a fleet with these seeds."""


def judge(replay: Replay, share: Callable[[Summary], float], *, asked: float, seeds: int) -> Callable[[Kinds], Trial]:
    """A function that tries each fleet once, with ``seeds`` seeds, and with up to ``MOST_ROUNDS`` times as many while
    they do not decide."""

    @cache
    def trial(fleet: Kinds) -> Trial:
        summaries: list[Summary] = []
        for number in range(MOST_ROUNDS):
            summaries += replay(fleet, range(number * seeds + 1, (number + 1) * seeds + 1))
            found = Trial(fleet, list(map(share, summaries)), asked, summaries)
            if found.verdict is not Verdict.OPEN:
                break
        return found

    return trial


@dataclass(frozen=True, slots=True)
class Sized:
    """The result of a search. ``trials``: by size, the best layout of each. ``smallest``: enough on average, while one
    engine fewer is not; None: no size that was tried is. ``sure``: the smallest that is enough beyond the noise, if
    there is one. ``helpless``: more engines did not help."""

    trials: Mapping[int, Trial]
    smallest: Trial | None
    sure: Trial | None
    helpless: bool = False


def smallest(best: Callable[[int], Trial], *, first: int, least: int, most: int) -> Sized:
    """Search the sizes ``least`` to ``most``. ``best``: tries a size. Begins with ``first``, doubles or halves until
    the verdict changes, and bisects between."""
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
            # An overloaded fleet may answer none in time with twice the engines, and all with four times as many.
            more, any_in_time = trials[size].share.mid - trials[below].share.mid, trials[size].share.mid > LITTLE
            if size == 2 * below and more <= LITTLE and any_in_time:
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
    """Find the best of the layouts ``least`` to ``most`` of one size, climbing from ``first``. Of two layouts that
    answer equally many in time, the one with shorter waits is better, so that the climb goes on where a fleet is too
    small to answer any."""

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
