"""What of the fitted costs outlives a process, as plain values that a file can hold.

A file can also hold anything else: each type raises ValueError for values that no fit can have come to. What is only
half done when a process ends (a batch of observations under way) is not kept.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import isfinite, log

from gateway.fleet.settings import StartingCosts

MOST_SUM = 1e30
"""Of a line's sums: a weight is at most 1e9, and a time a day."""

FARTHEST_KEPT = log(50.0)
"""Of a logarithm of a factor: that of the largest scale."""

MOST_WEIGHT = 1_000.0
"""Of counted observations and batches: with forgetting, the largest such sum is 100."""

MOST_IDLE = 10**9
"""Requests of the others since an engine's last one."""


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A ``fit.FittedLine``: its values and its five sums."""

    scale: float
    overhead: float
    usual: float
    usual_weight: float
    w: float
    wx: float
    wy: float
    wxx: float
    wxy: float

    def __post_init__(self) -> None:
        values = astuple(self)
        _check(all(map(isfinite, values)), "a line's value is not finite")
        # The largest scale is 50 and the largest overhead two seconds; the lines themselves bound both further.
        _check(0.02 <= self.scale <= 50.0 and 0.0 <= self.overhead <= 2.0, "a line's scale or overhead")
        _check(abs(self.usual) <= FARTHEST_KEPT and 0.0 <= self.usual_weight <= MOST_WEIGHT, "a line's usual deviation")
        _check(all(0.0 <= value <= MOST_SUM for value in values[4:]), "a line's sums")
        # By Cauchy and Schwarz; else the next observation could divide by zero.
        _check(self.wx * self.wx <= self.w * self.wxx * (1 + 1e-9), "a line's sums do not belong together")


@dataclass(frozen=True, slots=True)
class KeptDeviation:
    """A ``fit.Deviation``. ``left``: observations of the warm-up that are still to come."""

    certain: float
    left: int
    count: float
    mean: float
    square: float

    def __post_init__(self) -> None:
        _check(abs(self.certain) <= FARTHEST_KEPT and abs(self.mean) <= FARTHEST_KEPT, "a deviation")
        _check(0 <= self.left <= MOST_WEIGHT and 0.0 <= self.count <= MOST_WEIGHT, "a deviation's count")
        _check(0.0 <= self.square <= MOST_WEIGHT * FARTHEST_KEPT**2, "a deviation's scatter")


@dataclass(frozen=True, slots=True)
class KeptCore:
    """A ``cost.FittedCost``: how far one core deviates from its peers. ``engine``: its name. ``started``: of its
    process, as the engine reports it. ``idle``: requests of its peers since its last one."""

    engine: str
    rank: int | None
    started: float | None
    prefill: KeptDeviation
    step: KeptDeviation
    idle: int = 0

    def __post_init__(self) -> None:
        _check(0 <= self.idle <= MOST_IDLE, "idle")
        _check(self.started is None or isfinite(self.started), "started")


@dataclass(frozen=True, slots=True)
class KeptPeers:
    """A ``fit.PeerGroup``: of which model, role and start it is, its lines, and its cores. ``young``: observations that
    are still to be published at once."""

    model: str
    role: str
    start: StartingCosts
    prefill: KeptLine
    step: KeptLine
    young: int
    cores: tuple[KeptCore, ...]

    def __post_init__(self) -> None:
        _check(0 <= self.young <= MOST_WEIGHT, "young")


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(f"{what}: no fit comes to that")
