"""What makes the steps of a real engine longer and shorter than their model says, as seeded chance.

Each step's time has a factor of its own, lognormal with mean 1, and a few steps are stalls that take many times as
long (another process on the host, garbage collection, a kernel that is compiled). Steps that are taken in one leap have
the mean of their factors, which varies less by the root of their number; a stall is a step of its own, at its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, sqrt
from random import Random

WIDEST = 3.0
"""Standard deviation of a factor's logarithm: beyond it nearly all of the time is in the few longest steps."""

MOST_STALLS = 0.5
"""Share of steps: beyond it a stall is the rule."""


@dataclass(frozen=True, slots=True)
class Noise:
    """``step``, ``prefill``: standard deviation of the factor's logarithm, of steps that only decode and of those that
    compute prompts, in 0..3. ``stalls``: share of steps that take ``stall`` (at least 1) times as long, in 0..0.5."""

    step: float = 0.0
    prefill: float = 0.0
    stalls: float = 0.0
    stall: float = 10.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("step", 0, WIDEST), ("prefill", 0, WIDEST), ("stalls", 0, MOST_STALLS), ("stall", 1, 1e6),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be in {least}..{most:g}")

    def __bool__(self) -> bool:
        return bool(self.step or self.prefill or self.stalls)


class Disturbance:
    """One engine's noise, in the order of its steps.

    ``calm``: steps before the next stall; 0: the next one is a stall.
    """

    def __init__(self, noise: Noise, chance: Random) -> None:
        self._noise = noise
        self._chance = chance
        self.calm = self._until_stall()

    def factor(self, steps: int, prefill: bool) -> float:
        """Of the mean time of the next ``steps``, which must be 1 or at most ``calm``."""
        spread = (self._noise.prefill if prefill else self._noise.step) / sqrt(steps)
        factor = exp(self._chance.gauss(0.0, spread) - spread * spread / 2) if spread else 1.0
        return factor if self.calm else factor * self._noise.stall

    def passed(self, steps: int) -> None:
        """So many steps are over."""
        self.calm = self.calm - steps if self.calm else self._until_stall()

    def _until_stall(self) -> float:
        share = self._noise.stalls
        return int(log(1.0 - self._chance.random()) / log(1.0 - share)) if share else inf
