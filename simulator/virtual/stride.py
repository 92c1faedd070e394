"""Steps of an engine that are taken in one leap: each takes as long as the one before and the same again."""

from __future__ import annotations

from math import sqrt


class Stride:
    """``start``: when it began. ``steps``: how many; 0: nothing is under way. ``first``: seconds of the first,
    ``more``: what each takes more than the one before."""

    __slots__ = ("first", "more", "start", "steps")

    def __init__(self) -> None:
        self.start = 0.0
        self.steps = 0
        self.first = 0.0
        self.more = 0.0

    @property
    def end(self) -> float:
        return self.start + self.seconds(self.steps)

    def seconds(self, steps: int) -> float:
        """Of the first ``steps``."""
        return steps * self.first + self.more * (steps * (steps - 1) / 2)

    def done(self, now: float) -> int:
        """Steps that are over at ``now``."""
        passed, half = now - self.start, self.first - self.more / 2
        if passed <= 0:
            return 0
        steps = min(self.steps, int(2 * passed / (half + sqrt(half * half + 2 * self.more * passed))))
        while steps < self.steps and self.seconds(steps + 1) <= passed:
            steps += 1
        while steps > 0 and self.seconds(steps) > passed:
            steps -= 1
        return steps

    def ended(self, at: float) -> int:
        """Steps that are over at ``at``, or at the end of the one that is under way then."""
        done = self.done(at)
        return done + (done < self.steps and self.seconds(done) < at - self.start)
