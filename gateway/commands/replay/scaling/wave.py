"""A workload whose load rises and falls: the calls of another one, at other times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import pi, sin

from gateway.commands.replay.workload import TraceCall, Workload
from gateway.errors import ConfigError

STEPS = 50
"""Bisections: to far less than a microsecond of a day."""


@dataclass(frozen=True, slots=True)
class Wave:
    """The load follows a sine with this ``period`` in seconds, from its trough on; its peak is ``ratio`` times its
    trough, and its mean is the workload's own."""

    ratio: float
    period: float

    def __post_init__(self) -> None:
        if not (1 <= self.ratio <= 1000 and 1 <= self.period <= 1e6):
            raise ConfigError("--wave: the ratio must be in 1..1000, the period in 1..1e6 seconds")

    def moved(self, at: float) -> float:
        """When a call comes that would come at ``at`` (0..) under an even load."""
        low, high = at - self.period, at + self.period
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._come(middle) < at else (low, middle)
        return max(0.0, high)

    def _come(self, at: float) -> float:
        """The share of the load that has come until ``at``, in seconds of an even one."""
        swing = (self.ratio - 1) / (self.ratio + 1)
        turn = 2 * pi / self.period
        # The rate is 1 - swing * cos(turn * at), and this its integral.
        return at - swing / turn * sin(turn * at)


def wave(text: str) -> Wave:
    """Read ``RATIO:PERIOD``, such as ``4:1200``. Raises ConfigError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?):(\d{1,9}(?:\.\d{1,9})?)", text.strip(), re.ASCII)
    if found is None:
        raise ConfigError(f"--wave: {text!r} must be RATIO:PERIOD, such as 4:1200")
    return Wave(float(found[1]), float(found[2]))


class Waved:
    """``Workload``: an open one, whose calls all have their times from the start."""

    def __init__(self, workload: Workload, wave: Wave | None) -> None:
        self.name, self.block_size = workload.name, workload.block_size
        calls = workload.start()
        self._calls = calls if wave is None else [replace(call, at=wave.moved(call.at)) for call in calls]

    def start(self) -> Sequence[TraceCall]:
        return self._calls

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        return ()
