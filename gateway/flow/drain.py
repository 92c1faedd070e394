"""How fast a queue gets empty, and so when a refused client may try again.

    Retry-After = work before the tenant / (engine seconds settled per second * the tenant's part), +-20 % by chance

Pure.
"""

from __future__ import annotations

from math import exp, inf
from random import Random

MEMORY = 10.0
"""Seconds that the rate looks back: some answers' length, and shorter than a client waits."""

SOONEST, LATEST = 1.0, 60.0
"""Bounds of Retry-After, in seconds. The header has whole seconds, and OpenAI's clients ignore more than a minute."""

SPREAD = 0.2
"""Part by which it differs by chance either way: those who were refused at once must not come back at once."""


EACH = 0.1
"""Seconds of which what ends is added up first: so few answers need the average at all."""


class Drain:
    """``ended``: engine seconds that answers took which have ended, to be added to by whoever ends them. Once the time
    is ``due`` (Clock.monotonic()) they are to be ``settle``-d."""

    def __init__(self, usual: float, random: Random) -> None:
        """``usual``: seconds to retry after, while nothing has been settled."""
        self.ended = 0.0
        self.due = -inf
        self._usual = usual
        self._random = random
        self._rate = 0.0
        self._at = 0.0
        self._since: float | None = None

    def settle(self, now: float) -> None:
        """Take what has ``ended`` into the rate."""
        if self._since is None:
            self._since = now
        self._rate = self._rate * exp((self._at - now) / MEMORY) + self.ended / MEMORY
        self._at, self.due, self.ended = now, now + EACH, 0.0

    def rate(self, now: float) -> float:
        """Engine seconds settled per second: by the last 10 s, or what has passed since the first if that is less."""
        if self._since is None:
            return 0.0
        # Of a rate that began so lately, the average has seen a part only.
        seen = 1 - exp((self._since - max(now, self._since + 1.0)) / MEMORY)
        return (self._rate * exp((self._at - now) / MEMORY) + self.ended / MEMORY) / seen

    def retry_after(self, work: float, part: float, now: float) -> float:
        """``work``: engine seconds that are before the next one of this tenant. ``part``: of what is served, its own;
        above 0, at most 1. Returns seconds, 1..60."""
        rate = self.rate(now) * part
        seconds = work / rate if rate > 1e-9 else self._usual
        # What is above the bound is spread as well: the more are refused, the less may they come back at once.
        seconds = min(seconds, LATEST / (1 + SPREAD))
        return max(SOONEST, seconds * (1 + SPREAD * (2 * self._random.random() - 1)))
